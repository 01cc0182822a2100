// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/containerd/errdefs"
)

// kernel is one that came with its modules.
type kernel struct {
	image   string // as the boot loader takes it
	release string // as uname -r
	modules string // directory with modules.dep
}

// findKernel returns the kernel that Config.Kernel says: one of Kernels by its version, or one in a directory. Without
// either, it is the installed one, or else the default of Kernels.
func findKernel(ctx context.Context, version, arch string) (kernel, error) {
	if strings.Contains(version, "/") {
		return newestKernel(ctx, version)
	}
	if version == "" && arch == runtime.GOARCH {
		if k, err := newestKernel(ctx, "/"); err == nil || !errdefs.IsNotFound(err) {
			return k, err
		}
	}
	debian, err := kernelOf(cmp.Or(version, defaultKernel), arch)
	if err != nil {
		return kernel{}, err
	}
	cache, err := cacheDir()
	if err != nil {
		return kernel{}, err
	}
	dir := filepath.Join(cache, "kernel-"+debian.Version+"-"+debian.Arch)
	if k, err := newestKernel(ctx, dir); err == nil || !errdefs.IsNotFound(err) {
		return k, err
	}
	if err := fetchKernel(ctx, debian, dir); err != nil {
		return kernel{}, err
	}
	return newestKernel(ctx, dir)
}

// newestKernel returns the youngest of root's kernels that has modules for 9p, over which the guest finds its files.
// Debian's kernel for clouds has none.
func newestKernel(ctx context.Context, root string) (kernel, error) {
	var images []string
	for _, pattern := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"} { // until Debian 13, and since
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return kernel{}, err
		}
		images = append(images, found...)
	}
	var found kernel
	var newest os.FileInfo
	for _, image := range images {
		info, err := os.Stat(image)
		if err != nil {
			return kernel{}, err
		}
		release, ok := strings.CutPrefix(filepath.Base(image), "vmlinuz-")
		if !ok {
			release = filepath.Base(filepath.Dir(image))
		}
		modules := filepath.Join(root, "lib/modules", release)
		if _, err := os.Stat(filepath.Join(modules, "kernel/fs/9p")); err != nil {
			continue
		}
		if newest == nil || info.ModTime().After(newest.ModTime()) {
			found, newest = kernel{image: image, release: release, modules: modules}, info
		}
	}
	if newest == nil {
		return kernel{}, fmt.Errorf("kernel in %s: none that has 9p among its modules: %w", root, errdefs.ErrNotFound)
	}
	// A package that was only unpacked has no list of dependencies.
	if _, err := os.Stat(filepath.Join(found.modules, "modules.dep")); err != nil {
		if _, err := output(ctx, "", "depmod", "-b", root, found.release); err != nil {
			return kernel{}, err
		}
	}
	return found, nil
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
