// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// image is what a reference stands for.
type image struct {
	reference string
	layers    []tree
	config    ocispec.ImageConfig
}

// tree is a layer's content by absolute path. Parent directories come by themselves. No node has a time stamp, so the
// same tree always has the same digest.
type tree map[string]node

type node struct {
	kind byte // a tar type flag
	mode int64
	uid  int
	gid  int
	link string
	data string
}

func dir(mode int64) node                { return node{kind: tar.TypeDir, mode: mode} }
func text(mode int64, data string) node  { return node{kind: tar.TypeReg, mode: mode, data: data} }
func hardlink(target string) node        { return node{kind: tar.TypeLink, mode: 0o755, link: target[1:]} }
func (n node) ownedBy(uid, gid int) node { n.uid, n.gid = uid, gid; return n }

// push stores the image's parts with put and returns the manifest's digest.
func (i image) push(put func(mediaType string, data []byte) digest.Digest) (digest.Digest, error) {
	store := func(mediaType string, data []byte) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: mediaType, Digest: put(mediaType, data), Size: int64(len(data))}
	}
	config := ocispec.Image{
		Platform: ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   i.config,
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
	}
	for _, t := range i.layers {
		plain, packed, err := t.layer()
		if err != nil {
			return "", fmt.Errorf("layer of %s: %w", i.reference, err)
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(plain))
		manifest.Layers = append(manifest.Layers, store(ocispec.MediaTypeImageLayerGzip, packed))
	}
	data, err := json.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("config of %s: %w", i.reference, err)
	}
	manifest.Config = store(ocispec.MediaTypeImageConfig, data)
	if data, err = json.Marshal(manifest); err != nil {
		return "", fmt.Errorf("manifest of %s: %w", i.reference, err)
	}
	return put(ocispec.MediaTypeImageManifest, data), nil
}

// layer returns the tree as a tar and as the same tar packed.
func (t tree) layer() (plain, packed []byte, err error) {
	var flat, zipped bytes.Buffer
	w := tar.NewWriter(&flat)
	full := t.withParents()
	for _, name := range full.order() {
		n := full[name]
		header := &tar.Header{
			Typeflag: n.kind, Name: name[1:], Linkname: n.link, Mode: n.mode,
			Uid: n.uid, Gid: n.gid, Size: int64(len(n.data)), Format: tar.FormatPAX,
		}
		if n.kind == tar.TypeDir {
			header.Name += "/"
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if _, err := w.Write([]byte(n.data)); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, nil, err
	}
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestSpeed)
	if err != nil {
		return nil, nil, err
	}
	if _, err := z.Write(flat.Bytes()); err != nil {
		return nil, nil, err
	}
	if err := z.Close(); err != nil {
		return nil, nil, err
	}
	return flat.Bytes(), zipped.Bytes(), nil
}

// withParents adds the directories that t leaves out.
func (t tree) withParents() tree {
	full := maps.Clone(t)
	for name := range t {
		for p := path.Dir(name); p != "/"; p = path.Dir(p) {
			if _, ok := full[p]; !ok {
				full[p] = dir(0o755)
			}
		}
	}
	return full
}

// order sorts the names: a parent before its children, and a hard link after all that it could link to.
func (t tree) order() []string {
	rank := func(name string) int {
		if t[name].kind == tar.TypeLink {
			return 1
		}
		return 0
	}
	return slices.SortedFunc(maps.Keys(t), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
}
