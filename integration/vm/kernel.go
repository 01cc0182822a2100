// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

// kernel is one that came with its modules.
type kernel struct {
	image   string // bzImage
	release string // as uname -r
	modules string // directory with modules.dep
}

// findKernel returns the kernel in dir. Without dir, it is the installed one, or else Debian's, which is fetched once.
func findKernel(ctx context.Context, dir string) (kernel, error) {
	if dir != "" {
		return newestKernel(ctx, dir)
	}
	if k, err := newestKernel(ctx, "/"); err == nil || !errdefs.IsNotFound(err) {
		return k, err
	}
	cache, err := cacheDir()
	if err != nil {
		return kernel{}, err
	}
	cached, err := filepath.Glob(filepath.Join(cache, "kernel-*"))
	if err != nil {
		return kernel{}, err
	}
	for _, dir := range cached {
		if k, err := newestKernel(ctx, dir); err == nil || !errdefs.IsNotFound(err) {
			return k, err
		}
	}
	if dir, err = fetchKernel(ctx, cache); err != nil {
		return kernel{}, err
	}
	return newestKernel(ctx, dir)
}

// newestKernel returns the youngest of root's kernels that has modules for 9p, over which the guest finds its files.
// Debian's kernel for clouds has none.
func newestKernel(ctx context.Context, root string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil {
		return kernel{}, err
	}
	var found kernel
	var newest os.FileInfo
	for _, image := range images {
		info, err := os.Stat(image)
		if err != nil {
			return kernel{}, err
		}
		release := strings.TrimPrefix(filepath.Base(image), "vmlinuz-")
		modules := filepath.Join(root, "lib/modules", release)
		if _, err := os.Stat(filepath.Join(modules, "kernel/fs/9p")); err != nil {
			continue
		}
		if newest == nil || info.ModTime().After(newest.ModTime()) {
			found, newest = kernel{image: image, release: release, modules: modules}, info
		}
	}
	if newest == nil {
		return kernel{}, fmt.Errorf("kernel in %s: no boot/vmlinuz-* that has 9p among its modules: %w", root,
			errdefs.ErrNotFound)
	}
	// A package that was only unpacked has no list of dependencies.
	if _, err := os.Stat(filepath.Join(found.modules, "modules.dep")); err != nil {
		if _, err := output(ctx, "", "depmod", "-b", root, found.release); err != nil {
			return kernel{}, err
		}
	}
	return found, nil
}

// fetchKernel unpacks Debian's kernel into the cache, without installing it: the machine's own /boot stays as it is.
func fetchKernel(ctx context.Context, cache string) (string, error) {
	const meta = "linux-image-amd64"
	name, err := packageOf(ctx, meta)
	if err != nil { // a fresh machine has no lists yet
		if _, err := output(ctx, "", "apt-get", "update"); err != nil {
			return "", err
		}
		if name, err = packageOf(ctx, meta); err != nil {
			return "", err
		}
	}
	temp, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }() // it was renamed when all went well
	if _, err := output(ctx, temp, "apt-get", "download", name); err != nil {
		return "", err
	}
	packages, err := filepath.Glob(filepath.Join(temp, name+"_*.deb"))
	if err != nil || len(packages) != 1 {
		return "", fmt.Errorf("apt-get download %s: %d packages, want one: %w", name, len(packages),
			errors.Join(err, errdefs.ErrNotFound))
	}
	version, err := output(ctx, temp, "dpkg-deb", "-f", packages[0], "Version")
	if err != nil {
		return "", err
	}
	root := filepath.Join(temp, "root")
	if _, err := output(ctx, temp, "dpkg-deb", "-x", packages[0], root); err != nil {
		return "", err
	}
	if _, err := newestKernel(ctx, root); err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "kernel-"+strings.TrimSpace(version))
	return dir, renameOnce(root, dir)
}

// packageOf returns the package with the kernel that a metapackage stands for.
func packageOf(ctx context.Context, meta string) (string, error) {
	text, err := output(ctx, "", "apt-cache", "depends", meta)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if kind, name, _ := strings.Cut(strings.TrimSpace(line), ": "); kind == "Depends" {
			return name, nil
		}
	}
	return "", fmt.Errorf("apt-cache depends %s: names no package: %w", meta, errdefs.ErrNotFound)
}

// cacheDir is where the builder of the tools keeps its results too. SHIM_CACHE moves both.
func cacheDir() (string, error) {
	dir := os.Getenv("SHIM_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("cache directory (set SHIM_CACHE): %w", err)
		}
		dir = filepath.Join(user, "containerd-shim-sandbox-v1")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// renameOnce gives a directory its final name, unless another process was faster.
func renameOnce(temp, dir string) error {
	err := os.Rename(temp, dir)
	if _, e := os.Stat(dir); err != nil && e == nil {
		return nil
	}
	return err
}

// output runs a program in dir and returns what it printed.
func output(ctx context.Context, dir, name string, arg ...string) (string, error) {
	path, err := lookPath(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, arg...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(arg, " "), err, exit.Stderr)
		}
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(arg, " "), err)
	}
	return string(out), nil
}
