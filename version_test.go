// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var (
	semver    = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?\n$`)
	changeFor = regexp.MustCompile(`(?m)^## \[(.+?)\](?: - (\d{4}-\d{2}-\d{2}))?$`)
)

// The file VERSION is the one place for the version. integration/packages looks at -v, and at the packages.
func TestVersion_IsTheSameEverywhere(t *testing.T) {
	data, err := os.ReadFile("VERSION")
	if err != nil {
		t.Fatal(err)
	}
	if !semver.Match(data) {
		t.Fatalf("VERSION is %q, want MAJOR.MINOR.PATCH and a newline", data)
	}
	version := strings.TrimSpace(string(data))

	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := changeFor.FindAllStringSubmatch(string(changelog), -1)
	if len(sections) < 2 || sections[0][1] != "Unreleased" || sections[1][1] != version || sections[1][2] == "" {
		t.Errorf("CHANGELOG.md has the sections %q, want Unreleased, then %s with its date", sections, version)
	}

	for _, release := range []string{"", "1"} {
		cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "--dry-run", "build", "RELEASE="+release)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		want := "-X main.version=" + version
		if release != "" {
			want += " " // no commit behind it
		}
		if !strings.Contains(string(out), want) {
			t.Errorf("%s does not link with %q:\n%s", cmd, want, out)
		}
	}
}
