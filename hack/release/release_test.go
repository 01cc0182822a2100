// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a release consists of, and that its packages work, integration/packages tests.

func TestRun_RefusesWhatItCannotDo(t *testing.T) {
	for _, tt := range []struct {
		epoch string
		args  []string
		want  string
	}{
		{"", []string{"amd64=/bin/true"}, `SOURCE_DATE_EPOCH ""`},
		{"soon", []string{"amd64=/bin/true"}, `SOURCE_DATE_EPOCH "soon"`},
		{"-1", []string{"amd64=/bin/true"}, `SOURCE_DATE_EPOCH "-1"`},
		{"1", []string{"-version", "1.0.0"}, "no ARCH=DIRECTORY"},
		{"1", []string{"-version", "1.0.0", "amd64"}, `"amd64": want ARCH=DIRECTORY`},
		{"1", []string{"-version", "1.0.0", "amd64=/dev/null"}, "amd64: "},
	} {
		t.Setenv("SOURCE_DATE_EPOCH", tt.epoch)
		err := run(append([]string{"-root", "../..", "-out", t.TempDir()}, tt.args...))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("SOURCE_DATE_EPOCH=%q run(%q) = %v, want an error with %q", tt.epoch, tt.args, err, tt.want)
		}
	}
}

func TestLicenceTexts_HaveEachOnceBelowAllThatItHoldsFor(t *testing.T) {
	page := licenceTexts([]part{
		{path: "a", version: "v1", source: "there", licences: []string{"Do as you like."}},
		{path: "b", version: "v2", source: "here", licences: []string{"Do as you like.", "But tell."}},
		{path: "a", version: "v1", source: "there", licences: []string{"Do as you like."}}, // of the other program
	})
	_, page, _ = strings.Cut(page, "make build\n")
	line := "\n" + strings.Repeat("=", 80) + "\n\n"
	want := line + "a v1 (there)\nb v2 (here)\n\nDo as you like.\n" + line + "b v2 (here)\n\nBut tell.\n"
	if page != want {
		t.Errorf("licenceTexts = %q, want %q", page, want)
	}
}

func TestLicencesIn_NamesADirectoryWithoutAny(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "README"), []byte("Hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := licencesIn(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("licencesIn = %q, %v, want an error that names %s", got, err, dir)
	}
	if err := os.WriteFile(filepath.Join(dir, "License.txt"), []byte("Do as you like.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := licencesIn(dir); err != nil || len(got) != 1 || got[0] != "Do as you like." {
		t.Errorf("licencesIn = %q, %v, want the text", got, err)
	}
}

func TestMuslVersion(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"musl (1.2.3-1) unstable; urgency=medium\n\n  * New\n", "1.2.3-1"},
		{"musl unstable\n", ""},
		{"", ""},
	} {
		dir := t.TempDir()
		f, err := create(filepath.Join(dir, "changelog.Debian.gz"))
		if err != nil {
			t.Fatal(err)
		}
		w := gzip.NewWriter(f)
		_, err = io.WriteString(w, tt.text)
		if err := errors.Join(err, w.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
		if got, err := muslVersion(dir); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("muslVersion of %q = %q, %v, want %q", tt.text, got, err, tt.want)
		}
	}
}

func TestArchive_HasItsDirectoriesAndTheTimeOfTheCommit(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.WriteFile(source, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := release{made: time.Unix(1e9, 0)}
	to := filepath.Join(dir, "x-1.tar.gz")
	if err := r.archive(to, []file{
		{source: source, archive: "a/b/one", mode: 0o755},
		{source: source, archive: "a/two", mode: 0o644},
		{source: source, system: "/in/packages/alone"},
	}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	compressed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(compressed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name)
		if h.ModTime.Unix() != 1e9 || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s is of %v, and of %d:%d, want that of the release, and root's", h.Name, h.ModTime, h.Uid, h.Gid)
		}
	}
	want := "drwxr-xr-x x-1/, drwxr-xr-x x-1/a/, drwxr-xr-x x-1/a/b/, -rwxr-xr-x x-1/a/b/one, -rw-r--r-- x-1/a/two"
	if strings.Join(got, ", ") != want {
		t.Errorf("the archive has %s\nwant %s", strings.Join(got, ", "), want)
	}
}
