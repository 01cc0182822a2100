// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sandbox.internal/shim/integration/tools"
)

//go:embed guest
var guest embed.FS

// makeBase returns a directory with what all guests of one kernel boot from, from the cache if it is there: the kernel
// as an ELF file, and an initramfs with busybox and modules.
func makeBase(ctx context.Context, k kernel, busybox string) (dir string, err error) {
	cache, err := tools.Cache()
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return "", err
	}
	key := sha256.Sum256(fmt.Append(program, k, early))
	dir = filepath.Join(cache, "vm-"+k.release+"-"+hex.EncodeToString(key[:4]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	temp, err := os.MkdirTemp(cache, "base-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }() // it was renamed when all went well
	elf, err := k.elf(ctx)
	if err != nil {
		return "", err
	}
	modules, order, err := k.earlyModules(ctx)
	if err != nil {
		return "", err
	}
	files := map[string][]byte{
		"bin/busybox": program, "modules/order": []byte(strings.Join(order, "\n") + "\n"),
	}
	for name, data := range modules {
		files["modules/"+name] = data
	}
	initrd, err := initramfs(ctx, files)
	if err != nil {
		return "", err
	}
	err = errors.Join(os.WriteFile(filepath.Join(temp, "kernel"), elf, 0o644),
		os.WriteFile(filepath.Join(temp, "initrd"), initrd, 0o644))
	if err != nil {
		return "", err
	}
	if err := os.Rename(temp, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another process may have been faster
		return "", err
	}
	return dir, nil
}

// initramfs makes an archive of files, as cpio in the format "newc". Several archives, one after the other, are one.
func initramfs(ctx context.Context, files map[string][]byte) ([]byte, error) {
	dir, err := os.MkdirTemp("", "vmrun-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the archive has it
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, data, 0o755); err != nil {
			return nil, err
		}
	}
	return output(ctx, nil, "busybox", "sh", "-c", `cd "$0" && busybox find . | busybox cpio -o -H newc`, dir)
}

// runInitramfs holds what depends on the command: the scripts below guest, as /guest, and what they read.
func runInitramfs(ctx context.Context, c Config, k kernel) ([]byte, error) {
	see := append([]string{c.Dir}, c.See...)
	if c.Root == "" { // the guest sees all
		see = nil
	}
	files := map[string][]byte{
		"guest/settings": []byte(settings(c, k)),
		"guest/command":  []byte(command(c)),
		"guest/see":      lines(see),
		"guest/share":    lines(c.Share),
		"guest/tmpfs":    lines(c.Tmpfs),
	}
	err := fs.WalkDir(guest, "guest", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[name], err = guest.ReadFile(name)
		return err
	})
	files["init"] = files["guest/init"] // the kernel's first program
	if err != nil {
		return nil, err
	}
	return initramfs(ctx, files)
}

func lines(list []string) []byte {
	var text []byte
	for _, s := range list {
		text = append(text, s+"\n"...)
	}
	return text
}

// settings is what the guest's scripts know of the configuration, as a shell script.
func settings(c Config, k kernel) string {
	flag := func(on bool) string {
		if on {
			return "1"
		}
		return ""
	}
	return fmt.Sprintf("RELEASE=%s\nMODULES=%s\nROOT=%s\nSYSTEMD=%s\nDISK=%s\nV1=%s\n",
		quote(k.release), quote(k.modules()), quote(c.Root), flag(c.Systemd), flag(c.Disk != ""), flag(c.V1))
}

// command is the script that becomes the command, in its directory and with its environment.
func command(c Config) string {
	var b strings.Builder
	b.WriteString("export TMPDIR=/run/tmp USER=root\n")
	for _, v := range c.Env {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
	}
	fmt.Fprintf(&b, "cd %s || exit %d\nexec", quote(c.Dir), StatusFailed)
	for _, arg := range c.Command {
		b.WriteString(" " + quote(arg))
	}
	b.WriteString("\n")
	return b.String()
}

// quote makes one word of the shell's language.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
