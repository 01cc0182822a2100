// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandbox.internal/shim/integration/tools"
)

// Names of images that the tests make. That of volumes has no program in it: a file named Greeting that says hello, and
// a directory.
const (
	Image       = "shim.test/busybox:latest"
	PauseImage  = "shim.test/pause:latest" // of a pod's pause container
	VolumeImage = "shim.test/volume:latest"
	Greeting    = "greeting"
)

// ImageTar returns the test image as a tar that containerd and Docker import.
func ImageTar(env Env) (io.Reader, error) {
	files, err := rootfs(env.Busybox)
	if err != nil {
		return nil, err
	}
	return imageTar(Image, files, v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}})
}

// PauseTar returns the pause image as ImageTar returns the test image.
func PauseTar(env Env) (io.Reader, error) {
	binary, err := os.ReadFile(tools.Pause(env.Tools))
	if err != nil {
		return nil, err
	}
	return imageTar(PauseImage, []File{Regular("pause", 0o755, string(binary))}, v1.Config{Entrypoint: []string{"/pause"}})
}

// VolumeTar returns the volume image as ImageTar returns the test image.
func VolumeTar() (io.Reader, error) {
	return imageTar(VolumeImage, []File{
		Regular(Greeting, 0o644, "hello\n"), Dir("sub", 0o755), Regular("sub/file", 0o644, "below\n"),
	}, v1.Config{})
}

func imageTar(reference string, files []File, config v1.Config) (io.Reader, error) {
	tag, err := name.NewTag(reference)
	if err != nil {
		return nil, err
	}
	image, err := MakeImage(config, files)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	return &buf, tarball.Write(tag, image, &buf)
}

// MakeImage makes an image of layers. Without a time stamp in it, the same files always have the same digest.
func MakeImage(config v1.Config, layers ...[]File) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, files := range layers {
		data, err := pack(files)
		if err != nil {
			return nil, err
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, err
		}
	}
	old, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file := old.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(image, file)
}

// File is a file of an image, with its path in the header.
type File struct {
	tar.Header
	data string
}

// Regular is a file with this text.
func Regular(name string, mode int64, text string) File {
	return File{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text))}, text}
}

// Dir is a directory.
func Dir(name string, mode int64) File {
	return File{Header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}}
}

// rootfs lists the files of the test image, parents first: busybox, a link for each of its applets, two users, and the
// directories that a runtime mounts over.
func rootfs(busybox string) ([]File, error) {
	binary, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, dir := range []string{"bin", "dev", "etc", "proc", "root", "run", "sys", "tmp"} {
		files = append(files, Dir(dir, 0o755))
	}
	files = append(files,
		Regular("bin/busybox", 0o755, string(binary)),
		Regular("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\ntester:x:1000:1000:tester:/tmp:/bin/sh\n"),
		Regular("etc/group", 0o644, "root:x:0:\ntester:x:1000:\nextra:x:4444:tester\n"))
	applets, err := Applets(busybox)
	for _, applet := range applets {
		files = append(files,
			File{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}})
	}
	return files, err
}

// Applets lists the names by which a busybox is called.
func Applets(busybox string) ([]string, error) {
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", busybox, err)
	}
	return strings.Fields(strings.ReplaceAll("\n"+string(list), "\nbusybox\n", "\n")), nil
}

// WriteRootfs writes the files of the test image below dir, for bundles that are made without containerd.
func WriteRootfs(env Env, dir string) error {
	files, err := rootfs(env.Busybox)
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		switch f.Typeflag {
		case tar.TypeDir:
			err = errors.Join(err, os.MkdirAll(path, os.FileMode(f.Mode)))
		case tar.TypeSymlink:
			err = errors.Join(err, os.Symlink(f.Linkname, path))
		default:
			err = errors.Join(err, os.WriteFile(path, []byte(f.data), os.FileMode(f.Mode)))
		}
	}
	return err
}

// pack makes a tar of files.
func pack(files []File) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		if err := w.WriteHeader(&f.Header); err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(f.data)); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}
