// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"sandbox.internal/shim/integration/tools"
)

// Image is the name under which a Containerd knows the test image.
const Image = "shim.test/busybox:latest"

// ImageTar returns the test image as a tar in OCI layout, as containerd's import reads it.
func ImageTar(env Env) (io.Reader, error) {
	files, err := rootfs(env.Busybox)
	if err != nil {
		return nil, err
	}
	return imageTar(Image, files, ocispec.ImageConfig{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}})
}

// PauseImage is the name of the image of a pod's pause container.
const PauseImage = "shim.test/pause:latest"

// PauseTar returns the pause image as ImageTar returns the test image.
func PauseTar(env Env) (io.Reader, error) {
	binary, err := os.ReadFile(tools.Pause(env.Tools))
	if err != nil {
		return nil, err
	}
	return imageTar(PauseImage, []entry{{name: "pause", mode: 0o755, data: binary}},
		ocispec.ImageConfig{Entrypoint: []string{"/pause"}})
}

// VolumeImage is the name of an image with no program in it: a file named Greeting that says hello, and a directory.
const (
	VolumeImage = "shim.test/volume:latest"
	Greeting    = "greeting"
)

// VolumeTar returns the volume image as ImageTar returns the test image.
func VolumeTar() (io.Reader, error) {
	return imageTar(VolumeImage, []entry{
		{name: Greeting, mode: 0o644, data: []byte("hello\n")},
		{name: "sub", mode: fs.ModeDir | 0o755},
		{name: "sub/file", mode: 0o644, data: []byte("below\n")},
	}, ocispec.ImageConfig{})
}

// imageTar packs an image of one layer.
func imageTar(name string, files []entry, runs ocispec.ImageConfig) (io.Reader, error) {
	rootLayer, err := layer(files)
	if err != nil {
		return nil, err
	}
	a := newArchive()
	rootDesc := a.blob(ocispec.MediaTypeImageLayer, rootLayer)
	config := a.json(ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   runs,
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{rootDesc.Digest}},
	})
	manifest := a.json(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    config,
		Layers:    []ocispec.Descriptor{rootDesc},
	})
	manifest.Annotations = map[string]string{"io.containerd.image.name": name}
	// A Docker that keeps images itself reads nothing else; containerd prefers the layout.
	docker, err := json.Marshal([]map[string]any{{
		"Config": blobPath(config.Digest), "RepoTags": []string{name}, "Layers": []string{blobPath(rootDesc.Digest)},
	}})
	if err != nil {
		return nil, err
	}
	a.file("manifest.json", docker)
	return a.finish(manifest)
}

// archive builds a tar in OCI layout. The first error sticks and comes out of finish.
type archive struct {
	buf bytes.Buffer
	tar *tar.Writer
	err error
}

func newArchive() *archive {
	a := &archive{}
	a.tar = tar.NewWriter(&a.buf)
	return a
}

func (a *archive) file(name string, data []byte) {
	if a.err == nil {
		a.err = a.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Typeflag: tar.TypeReg})
	}
	if a.err == nil {
		_, a.err = a.tar.Write(data)
	}
}

func (a *archive) blob(mediaType string, data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	a.file(blobPath(d), data)
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

func blobPath(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }

func (a *archive) json(mediaType string, v any) ocispec.Descriptor {
	data, err := json.Marshal(v)
	if a.err == nil {
		a.err = err
	}
	return a.blob(mediaType, data)
}

func (a *archive) finish(manifest ocispec.Descriptor) (io.Reader, error) {
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		Manifests: []ocispec.Descriptor{manifest},
	})
	if err != nil {
		return nil, err
	}
	a.file("index.json", index)
	a.file(ocispec.ImageLayoutFile, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	if a.err == nil {
		a.err = a.tar.Close()
	}
	return &a.buf, a.err
}

// entry is one file of the test image.
type entry struct {
	name string
	mode fs.FileMode
	link string // target of a symbolic link
	data []byte
}

// rootfs lists the files of the test image, parents first: busybox, a link for each of its applets, two users, and the
// directories that a runtime mounts over.
func rootfs(busybox string) ([]entry, error) {
	binary, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", busybox, err)
	}
	var files []entry
	for _, dir := range []string{"bin", "dev", "etc", "proc", "root", "run", "sys", "tmp"} {
		files = append(files, entry{name: dir, mode: fs.ModeDir | 0o755})
	}
	files = append(files,
		entry{name: "bin/busybox", mode: 0o755, data: binary},
		entry{
			name: "etc/passwd", mode: 0o644,
			data: []byte("root:x:0:0:root:/root:/bin/sh\ntester:x:1000:1000:tester:/tmp:/bin/sh\n"),
		},
		entry{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\ntester:x:1000:\nextra:x:4444:tester\n")},
	)
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			files = append(files, entry{name: "bin/" + applet, mode: fs.ModeSymlink | 0o777, link: "busybox"})
		}
	}
	return files, nil
}

// WriteRootfs writes the files of the test image below dir, for bundles that are made without containerd.
func WriteRootfs(env Env, dir string) error {
	files, err := rootfs(env.Busybox)
	if err != nil {
		return err
	}
	for _, f := range files {
		name := filepath.Join(dir, f.name)
		switch f.mode.Type() {
		case fs.ModeDir:
			err = os.MkdirAll(name, f.mode.Perm())
		case fs.ModeSymlink:
			err = os.Symlink(f.link, name)
		default:
			err = os.WriteFile(name, f.data, f.mode.Perm())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// layer packs the files of the test image into a tar.
func layer(files []entry) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: int64(f.mode.Perm()), Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		switch f.mode.Type() {
		case fs.ModeDir:
			h.Typeflag = tar.TypeDir
		case fs.ModeSymlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}
