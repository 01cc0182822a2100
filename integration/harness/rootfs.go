// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

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
