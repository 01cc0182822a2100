// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// part is something that is linked into the binary, and not of the project.
type part struct {
	path, version string
	dir           string   // with its licence
	licences      []string // texts
	source        string   // where its source is
}

// ownModules begin the names of the project's modules, which have its licence.
const ownModules = "sandbox.internal/"

// linkedInto lists what the binary says that it is made of, then Go.
func (r release) linkedInto(binary string) ([]part, error) {
	built, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var parts []part
	for _, m := range built.Deps {
		if strings.HasPrefix(m.Path, ownModules) {
			continue
		}
		dir, err := r.download(m.Path + "@" + m.Version)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{
			path: m.Path, version: m.Version, dir: dir,
			source: "go mod download " + m.Path + "@" + m.Version,
		})
	}
	goroot, err := exec.Command(goCommand(), "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	return append(parts, part{
		path: "std", version: built.GoVersion, dir: strings.TrimSpace(string(goroot)), source: "https://go.dev/dl",
	}), nil
}

func readLicences(parts []part) (err error) {
	for i := range parts {
		if parts[i].licences, err = licencesIn(parts[i].dir); err != nil {
			return fmt.Errorf("%s %s: %w", parts[i].path, parts[i].version, err)
		}
	}
	return nil
}

// goCommand is the one of the build.
func goCommand() string { return cmp.Or(os.Getenv("GO"), "go") }

// download returns the directory of a module, which the build has downloaded already.
func (r release) download(module string) (string, error) {
	cmd := exec.Command(goCommand(), "mod", "download", "-json", module)
	cmd.Dir = r.root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	var m struct{ Dir string }
	return m.Dir, json.Unmarshal(out, &m)
}

// libraries asks hack/musl.sh what it links with: two C libraries, of which the binary says nothing.
func (r release) libraries(arch string) ([]part, error) {
	cmd := exec.Command(filepath.Join(r.root, "hack/musl.sh"), "env")
	cmd.Env = append(os.Environ(), "GOARCH="+arch)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("hack/musl.sh env: %w", err)
	}
	var musl, seccomp, version string
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "SHIM_MUSL_DOC":
			musl = value
		case "SHIM_LIBSECCOMP":
			seccomp = value
		case "SHIM_LIBSECCOMP_VERSION":
			version = value
		}
	}
	if musl == "" || seccomp == "" || version == "" {
		return nil, errors.New("hack/musl.sh does not say what it links with: a release is made on Debian")
	}
	debian, err := muslVersion(musl)
	if err != nil {
		return nil, err
	}
	return []part{
		{path: "musl", version: debian, dir: musl, source: "https://snapshot.debian.org/package/musl/" + debian},
		{
			path: "libseccomp", version: strings.TrimSuffix(strings.TrimPrefix(version, "v"), "+incompatible"), dir: seccomp,
			source: "go mod download github.com/seccomp/libseccomp@" + version,
		},
	}, nil
}

// muslVersion is that of Debian's package, whose documentation is in dir.
func muslVersion(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "changelog.Debian.gz"))
	if errors.Is(err, os.ErrNotExist) { // images for containers leave it out
		out, err := exec.Command("dpkg-query", "--show", "--showformat=${Version}", "musl-dev").Output()
		return string(out), err
	} else if err != nil {
		return "", err
	}
	text, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	line, err := bufio.NewReader(text).ReadString('\n')
	_, version, opened := strings.Cut(line, "(")
	version, _, closed := strings.Cut(version, ")")
	if err != nil || !opened || !closed {
		return "", fmt.Errorf("%s/changelog.Debian.gz: no version in %q: %w", dir, line, err)
	}
	return version, nil
}

// licenceFiles are how names of files with licences begin.
var licenceFiles = []string{"LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "PATENTS"}

// licencesIn returns the texts of licences and notices in dir. That there are none is an error.
func licencesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		is := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if e.IsDir() || !slices.ContainsFunc(licenceFiles, is) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, strings.TrimSpace(string(text)))
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("no licence in %s", dir)
	}
	return texts, nil
}

// licenceTexts is a page of all licences, each once, below the names of what is under it.
func licenceTexts(parts []part) string {
	var order []string
	under := map[string][]part{}
	for _, p := range parts {
		for _, text := range p.licences {
			if under[text] == nil {
				order = append(order, text)
			}
			same := func(q part) bool { return q.path == p.path && q.version == p.version }
			if !slices.ContainsFunc(under[text], same) { // both programs may have it
				under[text] = append(under[text], p)
			}
		}
	}
	var page strings.Builder
	page.WriteString("The programs have the following linked into them. Each text stands below what it holds for, and\n" +
		"where the source of that is. To link the binary with another libseccomp, name that in\n" +
		"hack/libseccomp/go.mod of the source of the project, and: make build\n")
	for _, text := range order {
		page.WriteString("\n" + strings.Repeat("=", 80) + "\n\n")
		for _, p := range under[text] {
			fmt.Fprintf(&page, "%s %s (%s)\n", p.path, p.version, p.source)
		}
		page.WriteString("\n" + text + "\n")
	}
	return page.String()
}
