// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
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
func (r release) files(work, dir, licences string) ([]file, error) {
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
		{source: filepath.Join(dir, name), archive: "bin/" + name, system: "/usr/bin/" + name, mode: 0o755},
		{source: filepath.Join(dir, tool), archive: "bin/" + tool, system: "/usr/bin/" + tool, mode: 0o755},
		{source: filepath.Join(work, "THIRD-PARTY-LICENSES"), archive: "THIRD-PARTY-LICENSES", mode: 0o644, licence: true},
		{source: filepath.Join(work, "copyright"), system: doc + "/copyright", mode: 0o644, licence: true},
		{source: filepath.Join(r.root, "LICENSE"), archive: "LICENSE", mode: 0o644, licence: true},
		{source: filepath.Join(r.root, "VERSION"), archive: "VERSION", mode: 0o644},
	}
	// What install.sh needs is on the machine; what makes an image for a cluster is in the archive alone.
	for _, pattern := range []string{
		"deploy/*.*", "deploy/Dockerfile", "*.md", "docs/*.md", "docs/decisions/*.md",
	} {
		sources, err := filepath.Glob(filepath.Join(r.root, pattern))
		if err != nil || len(sources) == 0 {
			return nil, fmt.Errorf("%s: no files: %w", pattern, err)
		}
		sources = slices.DeleteFunc(sources, func(source string) bool { // what an editor has left, which git ignores
			return strings.HasPrefix(filepath.Base(source), ".") || strings.HasSuffix(source, "~")
		})
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
	completions, err := r.completions(work)
	if err != nil {
		return nil, err
	}
	files = append(files, completions...)
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.archive, b.archive) })
	return files, nil
}

// zshOfDebian is where Debian's zsh looks for what packages complete; others look in zshOfOthers.
const (
	zshOfDebian = "/usr/share/zsh/vendor-completions/_" + tool
	zshOfOthers = "/usr/share/zsh/site-functions/_" + tool
)

// completions has the tool write what shells need to complete its arguments. It is the same for all processors.
func (r release) completions(work string) ([]file, error) {
	var files []file
	for shell, system := range map[string]string{
		"bash": "/usr/share/bash-completion/completions/" + tool,
		"zsh":  zshOfOthers,
		"fish": "/usr/share/fish/vendor_completions.d/" + tool + ".fish",
	} {
		cmd := exec.Command(goCommand(), "run", ".", "completion", shell)
		cmd.Dir = filepath.Join(r.root, "cmd", tool)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+runtime.GOARCH)
		cmd.Stderr = os.Stderr
		text, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
		}
		source := filepath.Join(work, tool+"."+shell)
		if err := writeText(source, string(text)); err != nil {
			return nil, err
		}
		files = append(files, file{source: source, archive: "completions/" + tool + "." + shell, system: system, mode: 0o644})
	}
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
