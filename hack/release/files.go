// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
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
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o644); err != nil {
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
		if err := os.WriteFile(source, text, 0o644); err != nil {
			return nil, err
		}
		files = append(files, file{source: source, archive: "completions/" + tool + "." + shell, system: system, mode: 0o644})
	}
	return files, nil
}

// archive writes a tar archive of one directory, which belongs to root.
func (r release) archive(to, work string, files []file) error {
	top := strings.TrimSuffix(filepath.Base(to), ".tar.gz")
	for _, f := range files {
		if f.archive == "" {
			continue
		}
		name := filepath.Join(work, top, f.archive)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := copyFile(name, f.source, f.mode); err != nil {
			return err
		}
	}
	return command(work, "tar", "--create", "--file", to, "--use-compress-program", "gzip -n",
		"--format=ustar", "--sort=name", fmt.Sprintf("--mtime=@%d", r.made.Unix()),
		"--owner=root:0", "--group=root:0", "--mode=u=rwX,go=rX", top)
}

func command(dir, name string, arg ...string) error {
	cmd := exec.Command(name, arg...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
