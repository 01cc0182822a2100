// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The README compares a package with its sum before it is installed, by a command that busybox has too.
func TestReadme_ComparesThePackageFirst(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(text)
	command := regexp.MustCompile(`(?m)^    .*sha256sum.*$`).FindString(readme)
	compared, installed := strings.Index(readme, "sha256sum"), strings.Index(readme, "dpkg -i")
	if command == "" || compared > installed || !strings.Contains(readme, "rpm -U ") {
		t.Fatalf("the README compares with %q at %d, installs at %d", command, compared, installed)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	const name = shimName + "_1.0.0_x86_64.apk"
	command = strings.ReplaceAll(command, "NAME", name)
	for applets, prefix := range map[string]string{"coreutils": "", "busybox": busybox + " "} {
		for content, ok := range map[string]bool{"published": true, "another": false} {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			sums := fmt.Sprintf("%x  %s\n%064d  absent.deb\n", sha256.Sum256([]byte("published")), name, 0)
			if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(command, "sha256sum", prefix+"sha256sum", 1))
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); (err == nil) != ok {
				t.Errorf("%s: the package is %s: %v\n%s", applets, content, err, out)
			}
		}
	}
}
