// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"fmt"
	"os"
)

// archive builds an initramfs: cpio in the "newc" format, as the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst describes it. Several archives, one after the other, are
// one.
type archive struct {
	buf   bytes.Buffer
	inode int
}

const (
	typeDirectory = 0o040000
	typeFile      = 0o100000
	executable    = 0o755
)

func (a *archive) directory(name string) { a.entry(name, typeDirectory|executable, nil) }

func (a *archive) file(name string, data []byte) { a.entry(name, typeFile|executable, data) }

// copy adds a file of the host.
func (a *archive) copy(name, from string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		a.file(name, data)
	}
	return err
}

func (a *archive) entry(name string, mode uint32, data []byte) {
	a.inode++
	const links, owner, group, mtime, device, check = 1, 0, 0, 0, 0, 0
	a.buf.WriteString("070701")
	for _, field := range []int{
		a.inode, int(mode), links, owner, group, mtime, len(data), device, device, device, device, len(name) + 1, check,
	} {
		fmt.Fprintf(&a.buf, "%08X", field)
	}
	a.buf.WriteString(name + "\x00")
	a.pad()
	a.buf.Write(data)
	a.pad()
}

func (a *archive) pad() {
	const alignment = 4
	for a.buf.Len()%alignment != 0 {
		a.buf.WriteByte(0)
	}
}

// bytes ends the archive.
func (a *archive) bytes() []byte {
	a.entry("TRAILER!!!", 0, nil)
	return a.buf.Bytes()
}
