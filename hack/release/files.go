// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// file is one that is packed.
type file struct {
	source  string
	archive string // its path below the directory of the archive; empty: it is in packages alone
	system  string // its path on a machine that has the package; empty: it is in archives alone
	mode    os.FileMode
	licence bool
}

// doc is where a machine that has the package has its documents.
const doc = "/usr/share/doc/" + name

// files lists what is packed, in the order of the archive. It writes what the project does not have to work.
func (r release) files(work, binary, licences string) ([]file, error) {
	own, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"THIRD-PARTY-LICENSES": licences,
		"copyright": name + " is licensed under the Apache License 2.0, which follows.\n\n" + string(own) +
			"\n" + licences,
	} {
		if err := writeText(filepath.Join(work, name), text); err != nil {
			return nil, err
		}
	}
	files := []file{
		{source: binary, archive: "bin/" + name, system: "/usr/bin/" + name, mode: 0o755},
		{source: filepath.Join(work, "THIRD-PARTY-LICENSES"), archive: "THIRD-PARTY-LICENSES", mode: 0o644, licence: true},
		{source: filepath.Join(work, "copyright"), system: doc + "/copyright", mode: 0o644, licence: true},
		{source: filepath.Join(r.root, "LICENSE"), archive: "LICENSE", mode: 0o644, licence: true},
		{source: filepath.Join(r.root, "VERSION"), archive: "VERSION", mode: 0o644},
	}
	// What install.sh needs is on the machine; what makes an image for a cluster is in the archive alone.
	for _, pattern := range []string{"deploy/*.*", "deploy/Dockerfile", "*.md", "docs/*.md", "docs/decisions/*.md"} {
		sources, err := filepath.Glob(filepath.Join(r.root, pattern))
		if err != nil || len(sources) == 0 {
			return nil, fmt.Errorf("%s: no files: %w", pattern, err)
		}
		for _, source := range sources {
			relative, err := filepath.Rel(r.root, source)
			if err != nil {
				return nil, err
			}
			f := file{source: source, archive: relative, mode: 0o644}
			if strings.HasSuffix(source, ".sh") {
				f.mode = 0o755
			}
			switch base := filepath.Base(source); {
			case strings.HasPrefix(base, "install"), strings.HasPrefix(base, "containerd-"), base == "runtimeclass.yaml":
				f.system = path.Join("/usr/share", name, base)
			case strings.HasSuffix(base, ".md") && !strings.HasPrefix(relative, "docs/decisions"):
				f.system = path.Join(doc, relative)
			}
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.archive, b.archive) })
	return files, nil
}

// archive writes a tar archive of one directory, which belongs to root.
func (r release) archive(to string, files []file) (err error) {
	f, err := create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	compressed := gzip.NewWriter(f)
	w := tar.NewWriter(compressed)
	top := strings.TrimSuffix(filepath.Base(to), ".tar.gz")
	made := map[string]bool{}
	for _, file := range files {
		if file.archive == "" {
			continue
		}
		inside := path.Join(top, file.archive)
		for _, dir := range parents(inside) {
			if made[dir] {
				continue
			}
			made[dir] = true
			header := tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: r.made}
			if err := w.WriteHeader(&header); err != nil {
				return err
			}
		}
		data, err := os.ReadFile(file.source)
		if err != nil {
			return err
		}
		header := tar.Header{
			Typeflag: tar.TypeReg, Name: inside, Mode: int64(file.mode), Size: int64(len(data)), ModTime: r.made,
		}
		if err := w.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), compressed.Close())
}

// create opens a file of the release for writing.
func create(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
}

func writeText(name, text string) error {
	f, err := create(name)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// parents lists the directories above a relative path, the topmost first.
func parents(of string) []string {
	var dirs []string
	for dir := path.Dir(of); dir != "."; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}
