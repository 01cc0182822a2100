// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// Packages for arm64 are unpacked by their own programs, and their binaries are run by qemu.
func TestPackages_Arm64(t *testing.T) {
	if !all() {
		t.Skip("NOT TESTED: packages for arm64, which take minutes: make test-packages")
	}
	root, err := filepath.Abs("../..")
	harness.Must(t, err)
	command(t, root, "make", "build", "ARCH=arm64", "BIN=bin/arm64")
	binaries := filepath.Join(root, "bin/arm64")
	release := filepath.Join(t.TempDir(), "release")
	command(t, "../../hack/release", "go", "build", "-o", release, ".")
	g := newGuest(t, "bookworm")
	command(t, root, release, "-out", g.share, "-formats", "deb,rpm,apk", "arm64="+binaries)
	version := strings.TrimSpace(read(t, "../../VERSION"))
	for format, how := range map[string]struct{ file, unpack, says string }{
		"deb": {shim + "_%s-1_arm64.deb", "dpkg-deb -x %s $to && dpkg-deb -f %[1]s Architecture", "arm64"},
		"rpm": {
			shim + "-%s-1.aarch64.rpm",
			"rpm --force-debian --root $to --ignorearch --nodeps --noscripts --install %s && rpm -qp --queryformat '%%{ARCH}' %[1]s", "aarch64",
		},
		"apk": {shim + "_%s-r1_aarch64.apk", "tar -xzf %s -C $to 2>/dev/null && sed -n 's/^arch = //p' $to/.PKGINFO", "aarch64"},
	} {
		t.Run(format, func(t *testing.T) {
			file := "/share/" + fmt.Sprintf(how.file, version)
			out := g.ok("to=/share/" + format + "; mkdir $to; " + fmt.Sprintf(how.unpack, file))
			if got := strings.TrimSpace(out); !strings.HasSuffix(got, how.says) {
				t.Errorf("the package is for %q, want %s", got, how.says)
			}
			for _, name := range []string{shim, tool} {
				packed := filepath.Join(g.share, format, "usr/bin", name)
				if read(t, packed) != read(t, filepath.Join(binaries, name)) {
					t.Errorf("%s is another than what was built", packed)
				}
				wantArm64(t, packed)
			}
		})
	}
	want := map[string][]string{shim: {"-v"}, tool: {"--version"}}
	for name, args := range want {
		qemu, err := exec.LookPath("qemu-aarch64-static")
		if err != nil {
			t.Fatalf("%v: integration/packages/deps.sh installs it", err)
		}
		if out := command(t, ".", qemu, append([]string{filepath.Join(binaries, name)}, args...)...); !strings.Contains(out, version) {
			t.Errorf("%s %q says %q, want version %s", name, args, out, version)
		}
	}
}

// wantArm64 fails the test unless a file is a program for arm64 that needs no other.
func wantArm64(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	harness.Must(t, err)
	f, err := elf.Open(path)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer f.Close()
	if f.Machine != elf.EM_AARCH64 || info.Mode().Perm() != 0o755 {
		t.Errorf("%s: %v, mode %v, want %v and 0755", path, f.Machine, info.Mode(), elf.EM_AARCH64)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s is not static", path)
		}
	}
}
