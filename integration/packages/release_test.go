// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/integration/harness"
)

// clone is a clean tree of the commit that is checked out.
func clone(t *testing.T, from, to string) {
	t.Helper()
	command(t, from, "git", "clone", "--quiet", "--no-hardlinks", ".", to)
}

// makeRelease runs a script that makes a release, in a clone, and returns where the files are.
func makeRelease(t *testing.T, from, dir, script string, env ...string) string {
	t.Helper()
	clone(t, from, dir)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return filepath.Join(dir, "bin/release")
}

// Two runs have nothing in common but the commit, the compilers and what was downloaded.
func TestRelease_IsMadeTheSameTwice(t *testing.T) {
	if !all() {
		t.Skip("NOT TESTED: releases, which take minutes: make test-packages")
	}
	mod := strings.TrimSpace(command(t, ".", "go", "env", "GOMODCACHE"))
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "elsewhere/b")
	a := makeRelease(t, "../..", first, `make release SIGN='f() { sha256sum "$$1" >"$$1.sig"; }; f'`)
	home := t.TempDir()
	b := makeRelease(t, first, second, "umask 077; make release", "HOME="+home, "TZ=Asia/Tokyo",
		"GOMODCACHE="+mod, "XDG_CACHE_HOME="+home+"/cache", "GOCACHE="+home+"/go-build")

	if err := os.Remove(filepath.Join(a, "SHA256SUMS.sig")); err != nil {
		t.Errorf("SIGN= did not sign: %v", err)
	}
	made := sums(t, a)
	if diff := cmp.Diff(made, sums(t, b)); diff != "" {
		t.Fatalf("two runs made different files (-first +second):\n%s", diff)
	}
	version := strings.TrimSpace(read(t, "../../VERSION"))
	var want []string
	for _, form := range []string{
		"%s-%s-linux-amd64", "%s-%s-linux-arm64", "%s-%s-linux-amd64.tar.gz", "%s-%s-linux-arm64.tar.gz",
		"%s-%s-linux-amd64.cdx.json", "%s-%s-linux-arm64.cdx.json", "%s_%s-1_amd64.deb", "%s_%s-1_arm64.deb",
		"%s-%s-1.x86_64.rpm", "%s-%s-1.aarch64.rpm", "%s_%s-r1_x86_64.apk", "%s_%s-r1_aarch64.apk",
	} {
		want = append(want, fmt.Sprintf(form, shim, version))
	}
	for _, form := range []string{
		"%s-%s-linux-amd64", "%s-%s-linux-arm64", "%s-%s-linux-amd64.cdx.json", "%s-%s-linux-arm64.cdx.json",
	} {
		want = append(want, fmt.Sprintf(form, tool, version))
	}
	want = append(want, "SHA256SUMS")
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(made))); diff != "" {
		t.Errorf("files of a release (-want +got):\n%s", diff)
	}
	if lines := strings.Count(command(t, a, "sha256sum", "--check", "--strict", "SHA256SUMS"), ": OK\n"); lines != len(want)-1 {
		t.Errorf("SHA256SUMS has %d lines, want one for each of the other %d files", lines, len(want)-1)
	}

	harness.Must(t, os.WriteFile(filepath.Join(first, "new"), nil, 0o600))
	cmd := exec.CommandContext(t.Context(), "make", "release")
	cmd.Dir = first
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "the tree is not clean") {
		t.Errorf("make release beside a new file: %v\n%s\nwant an error that says so", err, out)
	}

	binary := filepath.Join(a, fmt.Sprintf("%s-%s-linux-amd64", shim, version))
	if out := command(t, ".", binary, "-v"); !strings.Contains(out, "Version:  "+version+"\n") {
		t.Errorf("-v of the released binary = %q, want version %s alone", out, version)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		base := filepath.Join(a, fmt.Sprintf("%s-%s-linux-%s", shim, version, arch))
		if out := command(t, ".", "readelf", "-lW", base); strings.Contains(out, "INTERP") {
			t.Errorf("%s is not static", base)
		}
		testArchive(t, base)
	}
}

// testArchive looks into an archive: what is linked has its licence in it, and is in the SBOM.
func testArchive(t *testing.T, base string) {
	t.Helper()
	files := untar(t, base+".tar.gz")
	for _, name := range []string{
		"LICENSE", "README.md", "CHANGELOG.md", "deploy/install.sh", "deploy/runtimeclass.yaml", "docs/configuration.md",
	} {
		if files[name] == "" {
			t.Errorf("%s.tar.gz has no %s", base, name)
		}
	}
	if files["bin/"+shim] != read(t, base) {
		t.Errorf("the binary of %s.tar.gz is another than the single one", base)
	}
	ofTool := strings.Replace(base, shim, tool, 1)
	if files["bin/"+tool] != read(t, ofTool) || files["completions/"+tool+".zsh"] == "" {
		t.Errorf("%s.tar.gz has not the %s that there is alone, or not its completions", base, tool)
	}
	testSBOM(t, ofTool+".cdx.json", files["THIRD-PARTY-LICENSES"], "std", "github.com/spf13/cobra")
	testSBOM(t, base+".cdx.json", files["THIRD-PARTY-LICENSES"], "musl", "libseccomp", "std", "github.com/opencontainers/runc")
	for _, text := range []string{"GNU LESSER GENERAL PUBLIC LICENSE", "Rich Felker", "The Go Authors", "Mozilla Public License"} {
		if !strings.Contains(files["THIRD-PARTY-LICENSES"], text) {
			t.Errorf("THIRD-PARTY-LICENSES of %s.tar.gz has no %q", base, text)
		}
	}
}

// testSBOM looks that a document lists what it must, and that the licences of all that it lists are there.
func testSBOM(t *testing.T, file, licences string, must ...string) {
	t.Helper()
	var bom struct {
		Format     string `json:"bomFormat"`
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal([]byte(read(t, file)), &bom); err != nil || bom.Format != "CycloneDX" {
		t.Fatalf("%s: format %q, %v", file, bom.Format, err)
	}
	listed := map[string]string{}
	for _, c := range bom.Components {
		listed[c.Name] = c.Version
		if !strings.Contains(licences, "\n"+c.Name+" "+c.Version+" (") {
			t.Errorf("%s lists %s %s, which THIRD-PARTY-LICENSES does not name", file, c.Name, c.Version)
		}
	}
	for _, name := range must {
		if listed[name] == "" {
			t.Errorf("%s does not list %s with its version", file, name)
		}
	}
}

// untar returns the files of an archive by their path below its one directory.
func untar(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	harness.Must(t, err)
	defer func() { _ = f.Close() }()
	compressed, err := gzip.NewReader(f)
	harness.Must(t, err)
	files := map[string]string{}
	top := strings.TrimSuffix(filepath.Base(name), ".tar.gz") + "/"
	for r := tar.NewReader(compressed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		} else if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		harness.Must(t, err)
		inside, ok := strings.CutPrefix(h.Name, top)
		if !ok {
			t.Errorf("%s has %s, want all below %s", name, h.Name, top)
		}
		files[inside] = string(data)
	}
}

func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	harness.Must(t, err)
	found := map[string]string{}
	for _, e := range entries {
		found[e.Name()] = fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, filepath.Join(dir, e.Name())))))
	}
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	harness.Must(t, err)
	return string(data)
}
