// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
)

// Kernel is one of Debian's that guests can boot.
type Kernel struct {
	Version string // its series, as in `make test-kernel KERNEL=`; 7 is the newest there is
	Package string // which depends on the newest of the series
	Suite   string
	Arch    string // Debian's and Go's name
}

// defaultKernel is what a guest boots when nothing else is asked for, and none is installed.
const defaultKernel = "6.1"

// Kernels lists the kernels that the tests run on.
func Kernels() []Kernel {
	var list []Kernel
	for _, arch := range []string{"amd64", "arm64"} {
		image := "linux-image-" + arch
		list = append(list,
			Kernel{Version: "5.10", Package: image, Suite: "bullseye-security", Arch: arch},
			Kernel{Version: "6.1", Package: image, Suite: "bookworm-security", Arch: arch},
			Kernel{Version: "6.12", Package: image, Suite: "trixie-security", Arch: arch},
			Kernel{Version: "7", Package: image, Suite: "sid", Arch: arch},
		)
	}
	return list
}

// kernelOf finds a kernel in the list.
func kernelOf(version, arch string) (Kernel, error) {
	var versions []string
	for _, k := range Kernels() {
		if k.Arch != arch {
			continue
		}
		if k.Version == version {
			return k, nil
		}
		versions = append(versions, k.Version)
	}
	return Kernel{}, fmt.Errorf("kernel %q for %s: want one of %s, or a directory: %w", version, arch,
		strings.Join(versions, ", "), errdefs.ErrInvalidArgument)
}

// fetchKernel unpacks Debian's kernel into dir, without installing it: the machine's own /boot stays as it is, and so
// do its lists of packages.
func fetchKernel(ctx context.Context, k Kernel, dir string) error {
	temp, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }() // it was renamed when all went well
	config, err := aptConfig(temp, k)
	if err != nil {
		return err
	}
	apt := func(arg ...string) (string, error) {
		return output(ctx, temp, arg[0], append([]string{"-c", config}, arg[1:]...)...)
	}
	if _, err := apt("apt-get", "update"); err != nil {
		return err
	}
	root := filepath.Join(temp, "root")
	for todo := []string{k.Package}; len(todo) > 0; todo = todo[1:] {
		if err := unpackPackage(ctx, apt, temp, todo[0], root); err != nil {
			return err
		}
		depends, err := apt("apt-cache", "depends", "--important", todo[0])
		if err != nil {
			return err
		}
		todo = append(todo, parts(depends)...)
	}
	// Kernels since Debian 13 are packed with all directories in usr.
	if _, err := os.Stat(filepath.Join(root, "lib")); err != nil {
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return err
		}
	}
	if _, err := newestKernel(ctx, root); err != nil {
		return err
	}
	return renameOnce(root, dir)
}

// unpackPackage fetches a package into dir and unpacks it into root.
func unpackPackage(ctx context.Context, apt func(arg ...string) (string, error), dir, name, root string) error {
	if _, err := apt("apt-get", "download", name); err != nil {
		return err
	}
	archive, err := filepath.Glob(filepath.Join(dir, name+"_*.deb"))
	if err != nil {
		return err
	}
	if len(archive) != 1 {
		return fmt.Errorf("apt-get download %s: %q, want one package: %w", name, archive, errdefs.ErrNotFound)
	}
	_, err = output(ctx, dir, "dpkg-deb", "-x", archive[0], root)
	return err
}

// parts returns the packages of one kernel that a package depends on, from what apt-cache says. Since 7.x the kernel
// and its modules have packages of their own.
func parts(depends string) []string {
	part := regexp.MustCompile(`(?m)^ *Depends: (linux-(?:image|binary|modules)-[0-9].*)$`)
	var names []string
	for _, m := range part.FindAllStringSubmatch(depends, -1) {
		names = append(names, m[1])
	}
	return names
}

// aptConfig writes a configuration below dir in which apt knows the suite of the kernel and nothing else.
func aptConfig(dir string, k Kernel) (string, error) {
	archive := "http://deb.debian.org/debian"
	if strings.HasSuffix(k.Suite, "-security") {
		archive += "-security"
	}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return "", err
		}
	}
	status := filepath.Join(dir, "status") // no package is installed
	if err := os.WriteFile(status, nil, 0o600); err != nil {
		return "", err
	}
	sources := filepath.Join(dir, "sources.list")
	line := fmt.Sprintf("deb [arch=%s signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", k.Arch,
		archive, k.Suite)
	if err := os.WriteFile(sources, []byte(line), 0o600); err != nil {
		return "", err
	}
	var text strings.Builder
	for _, setting := range [][2]string{
		{"APT::Architecture", k.Arch},
		{"APT::Sandbox::User", "root"}, // the cache may be in a directory that others cannot enter
		{"Acquire::Languages", "none"},
		{"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false"},
		{"Dir::Cache", filepath.Join(dir, "cache")},
		{"Dir::Etc::sourcelist", sources},
		{"Dir::Etc::sourceparts", "-"},
		{"Dir::State::lists", filepath.Join(dir, "lists")},
		{"Dir::State::status", status},
	} {
		fmt.Fprintf(&text, "%s %q;\n", setting[0], setting[1])
	}
	config := filepath.Join(dir, "apt.conf")
	return config, os.WriteFile(config, []byte(text.String()), 0o600)
}
