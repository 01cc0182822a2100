// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

//go:embed guest
var guest embed.FS

// base is what all guests of one kernel boot from: the kernel as an ELF file, and an initramfs with busybox and
// modules.
type base struct{ kernel, initrd string }

// makeBase returns the base of a kernel, from the cache if it is there.
func makeBase(ctx context.Context, k kernel, busybox string) (base, error) {
	cache, err := cacheDir()
	if err != nil {
		return base{}, err
	}
	key := sha256.New()
	for _, name := range []string{k.image, busybox} {
		info, err := os.Stat(name)
		if err != nil {
			return base{}, err
		}
		fmt.Fprintln(key, name, info.Size(), info.ModTime())
	}
	fmt.Fprintln(key, early())
	dir := filepath.Join(cache, "vm-"+k.release+"-"+hex.EncodeToString(key.Sum(nil)[:4]))
	b := base{kernel: filepath.Join(dir, "kernel"), initrd: filepath.Join(dir, "initrd")}
	if _, err := os.Stat(b.initrd); err == nil {
		return b, nil
	}
	temp, err := os.MkdirTemp(cache, "base-")
	if err != nil {
		return base{}, err
	}
	defer func() { _ = os.RemoveAll(temp) }() // it was renamed when all went well
	elf, err := unpackKernel(ctx, k.image)
	if err != nil {
		return base{}, err
	}
	initrd, err := baseInitramfs(ctx, k, busybox)
	if err != nil {
		return base{}, err
	}
	for name, data := range map[string][]byte{"kernel": elf, "initrd": initrd} {
		if err := os.WriteFile(filepath.Join(temp, name), data, 0o644); err != nil {
			return base{}, err
		}
	}
	return b, renameOnce(temp, dir)
}

// unpackKernel returns the ELF file inside a bzImage, or the file as it is: a bzImage that is compressed by other than
// xz, or arm64's Image. The guest would take seconds to unpack itself. The offsets are from the kernel's
// Documentation/arch/x86/boot.rst.
func unpackKernel(ctx context.Context, image string) ([]byte, error) {
	const (
		setupSects, signature, payloadOffset, payloadLength, headerEnd = 0x1f1, 0x202, 0x248, 0x24c, 0x250

		sector = 512
		magic  = "\x7fELF"
	)
	data, err := os.ReadFile(image)
	if err != nil {
		return nil, err
	}
	if len(data) < headerEnd {
		return nil, fmt.Errorf("kernel %s: %d bytes, want a kernel: %w", image, len(data), errdefs.ErrInvalidArgument)
	}
	if !bytes.HasPrefix(data[signature:], []byte("HdrS")) {
		return data, nil
	}
	begin := (int(data[setupSects])+1)*sector + int(binary.LittleEndian.Uint32(data[payloadOffset:]))
	end := begin + int(binary.LittleEndian.Uint32(data[payloadLength:]))
	if end > len(data) {
		return nil, fmt.Errorf("kernel %s: its payload ends at %d of %d bytes: %w", image, end, len(data),
			errdefs.ErrInvalidArgument)
	}
	// The payload's last four bytes are its size unpacked. xz takes them for garbage, after it has unpacked all.
	if elf, _ := unxz(ctx, data[begin:end]); strings.HasPrefix(string(elf[:min(len(elf), len(magic))]), magic) {
		return elf, nil
	}
	return data, ctx.Err()
}

// baseInitramfs holds what depends on nothing but the kernel.
func baseInitramfs(ctx context.Context, k kernel, busybox string) ([]byte, error) {
	dep, err := os.ReadFile(filepath.Join(k.modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	var a archive
	a.directory("bin")
	a.directory("modules")
	if err := a.copy("bin/busybox", busybox); err != nil {
		return nil, err
	}
	var names []string
	for _, file := range loadOrder(string(dep), early()) {
		data, err := readModule(ctx, filepath.Join(k.modules, file))
		if err != nil {
			return nil, err
		}
		name := moduleName(file)
		a.file("modules/"+name, data)
		names = append(names, name)
	}
	a.file("modules/order", []byte(strings.Join(names, "\n")+"\n"))
	return a.bytes(), nil
}

// runInitramfs holds what depends on the command: the scripts below guest, as /guest, and what they read.
func runInitramfs(c Config, k kernel) ([]byte, error) {
	var a archive
	err := fs.WalkDir(guest, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case d.IsDir():
			a.directory(name)
			return nil
		}
		data, err := guest.ReadFile(name)
		a.file(name, data)
		return err
	})
	if err != nil {
		return nil, err
	}
	init, err := guest.ReadFile("guest/init")
	if err != nil {
		return nil, err
	}
	a.file("init", init) // the kernel's first program
	for name, text := range map[string]string{
		"settings": settings(c, k),
		"command":  command(c),
		"see":      lines(seen(c)),
		"share":    lines(c.Share),
		"tmpfs":    lines(c.Tmpfs),
	} {
		a.file(path.Join("guest", name), []byte(text))
	}
	return a.bytes(), nil
}

// seen are the directories of the host that the guest sees where it has a root of its own.
func seen(c Config) []string {
	if c.Root == "" {
		return nil
	}
	return append([]string{c.Dir}, c.See...)
}

func lines(list []string) string {
	var b strings.Builder
	for _, s := range list {
		b.WriteString(s + "\n")
	}
	return b.String()
}
