// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/tools"
)

// suites are those of Debian that have the kernels of guests, by the kernel's series; 7 is the newest there is.
var suites = map[string]string{"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie", "7": "sid"}

// kernel is one that came with its modules.
type kernel struct {
	image   string // as the boot loader takes it
	release string // as uname -r
	root    string // directory with lib/modules
}

func (k kernel) modules() string { return filepath.Join(k.root, "lib/modules", k.release) }

// findKernel returns Debian's kernel of a series, 6.1 by default. It is fetched once, and stays in the cache.
func findKernel(ctx context.Context, version, arch string) (kernel, error) {
	version = cmp.Or(version, "6.1")
	suite, ok := suites[version]
	if !ok {
		return kernel{}, fmt.Errorf("kernel %q: want one of %q: %w", version, slices.Sorted(maps.Keys(suites)),
			errdefs.ErrInvalidArgument)
	}
	cache, err := tools.Cache()
	if err != nil {
		return kernel{}, err
	}
	dir := filepath.Join(cache, "kernel-"+version+"-"+arch)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		// With base-files come the links in place of /lib, where a suite has them.
		if err := tools.Unpack(ctx, "-d", "-s", suite, arch, dir, "base-files", "linux-image-"+arch); err != nil {
			return kernel{}, err
		}
	}
	for _, pattern := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"} { // until Debian 13, and since
		images, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(images) == 0 {
			continue
		}
		k := kernel{image: images[0], release: filepath.Base(filepath.Dir(images[0])), root: dir}
		if name, ok := strings.CutPrefix(filepath.Base(images[0]), "vmlinuz-"); ok {
			k.release = name
		}
		// A package that was only unpacked has no list of dependencies.
		if _, err := os.Stat(filepath.Join(k.modules(), "modules.dep")); err != nil {
			_, err = output(ctx, nil, "depmod", "-b", dir, k.release)
			return k, err
		}
		return k, nil
	}
	return kernel{}, fmt.Errorf("kernel in %s: %w", dir, errdefs.ErrNotFound)
}

// early are the modules without which the guest cannot reach its root.
var early = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// earlyModules returns these and those that they need by their names, as the kernel takes them, and the order in which
// they can be loaded. What is built into the kernel is left out.
func (k kernel) earlyModules(ctx context.Context) (files map[string][]byte, order []string, err error) {
	list, err := output(ctx, nil, "modprobe", append([]string{"-a", "-D", "-d", k.root, "-S", k.release}, early...)...)
	if len(list) == 0 { // it fails for those that are built into the kernel, too
		return nil, nil, err
	}
	files = map[string][]byte{}
	for line := range strings.Lines(string(list)) {
		file, ok := strings.CutPrefix(strings.TrimSpace(line), "insmod ")
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		if !ok || slices.Contains(order, name) {
			continue
		}
		data, err := os.ReadFile(file)
		if err == nil && filepath.Ext(file) == ".xz" {
			data, err = output(ctx, data, "xz", "-dc")
		}
		if err != nil {
			return nil, nil, err
		}
		files[name], order = data, append(order, name)
	}
	return files, order, nil
}

// elf returns the ELF file inside a bzImage, or the image as it is: a bzImage that is compressed by other than xz, or
// arm64's Image. The guest would take seconds to unpack itself. The offsets are from the kernel's
// Documentation/arch/x86/boot.rst.
func (k kernel) elf(ctx context.Context) ([]byte, error) {
	const setupSects, signature, payloadOffset, payloadLength, sector = 0x1f1, 0x202, 0x248, 0x24c, 512
	data, err := os.ReadFile(k.image)
	if err != nil || len(data) < payloadLength+4 || !bytes.HasPrefix(data[signature:], []byte("HdrS")) {
		return data, err
	}
	begin := (int(data[setupSects])+1)*sector + int(binary.LittleEndian.Uint32(data[payloadOffset:]))
	end := begin + int(binary.LittleEndian.Uint32(data[payloadLength:]))
	if end > len(data) {
		return nil, fmt.Errorf("kernel %s: its payload ends at %d of %d bytes: %w", k.image, end, len(data),
			errdefs.ErrInvalidArgument)
	}
	// The payload's last four bytes are its size unpacked. xz takes them for garbage, after it has unpacked all.
	if elf, _ := output(ctx, data[begin:end], "xz", "-dc"); bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return elf, nil
	}
	return data, ctx.Err()
}

// output runs a program and returns what it printed, also beside an error.
func output(ctx context.Context, stdin []byte, name string, arg ...string) ([]byte, error) {
	path, err := lookPath(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, arg...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, &stderr)
	}
	return out, err
}

// lookPath also looks where only root's PATH does.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, filepath.Base(program)))
		}
	}
	return path, err
}
