// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
