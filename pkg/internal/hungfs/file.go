// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hungfs

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The messages of FUSE are those of the kernel's include/uapi/linux/fuse.h.
type request struct {
	Len, Opcode    uint32
	Unique, Node   uint64
	UID, GID, PID  uint32
	ExtLen, Unused uint16
}

type attributes struct {
	Ino, Size, Blocks, Atime, Mtime, Ctime      uint64
	AtimeNsec, MtimeNsec, CtimeNsec             uint32
	Mode, Nlink, UID, GID, Rdev, Blksize, Flags uint32
}

const (
	root = 1 // the number of the directory
	file = 2
)

func attributesOf(node uint64) attributes {
	if node == root {
		return attributes{Ino: root, Mode: unix.S_IFDIR | 0o755, Nlink: 2}
	}
	size := uint64(os.Getpagesize())
	return attributes{Ino: file, Size: size, Mode: unix.S_IFREG | 0o644, Nlink: 1}
}

// answer returns the answer to a request that comes before a file is read. There is none to FUSE_READ.
func answer(q request) any {
	const (
		lookup, getattr, open, initialize, opendir = 1, 3, 14, 26, 27
	)
	switch q.Opcode {
	case initialize:
		return struct {
			Major, Minor, Readahead, Flags uint32
			Background, Congestion         uint16
			MaxWrite, Granularity          uint32
			Rest                           [9]uint32
		}{Major: 7, Minor: 31, MaxWrite: 1 << 16, Granularity: 1}
	case lookup:
		return struct {
			Node, Generation, EntryValid, AttrValid uint64
			EntryNsec, AttrNsec                     uint32
			Attr                                    attributes
		}{Node: file, EntryValid: 1 << 20, AttrValid: 1 << 20, Attr: attributesOf(file)}
	case getattr:
		return struct {
			Valid        uint64
			Nsec, Unused uint32
			Attr         attributes
		}{Valid: 1 << 20, Attr: attributesOf(q.Node)}
	case open, opendir:
		return [2]uint64{}
	}
	return nil
}

// MountFile is [Mount] of a file system that answers until the content of its only file is read. It returns the path of
// that file, which is one page long.
func MountFile(t *testing.T, dir string) string {
	t.Helper()
	server := mount(t, dir)
	go serve(server) // ends when the file system does
	return filepath.Join(dir, "file")
}

func serve(server *os.File) {
	buf := make([]byte, 1<<17)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		var q request
		if err := binary.Read(bytes.NewReader(buf[:n]), binary.NativeEndian, &q); err != nil {
			return
		}
		body := answer(q)
		const read, forget = 15, 2
		if q.Opcode == read || q.Opcode == forget {
			continue
		}
		header := struct {
			Len    uint32
			Error  int32
			Unique uint64
		}{Len: 16, Unique: q.Unique}
		if body == nil {
			header.Error = -int32(unix.ENOSYS)
		} else {
			header.Len += uint32(binary.Size(body))
		}
		var out bytes.Buffer
		for _, part := range []any{header, body} {
			if part != nil {
				_ = binary.Write(&out, binary.NativeEndian, part) // of fixed size
			}
		}
		_, _ = server.Write(out.Bytes()) // the caller may be gone
	}
}
