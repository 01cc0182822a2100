// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// IsGone reports whether err means that the cgroup was removed: its files cannot be opened any more, and those that are
// open answer ENODEV.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// Write writes text and a newline to a control file, in one write as the kernel wants it. It does not create the file.
func Write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return writeAndClose(f, text)
}

func writeAndClose(f *os.File, text string) error {
	_, err := f.WriteString(text + "\n")
	if err != nil {
		err = fmt.Errorf("%w (value %q)", err, text)
	}
	return errors.Join(err, f.Close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// readNumber reads a control file that holds one number.
func readNumber(path string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse %s: %w", path, err)
	}
	return n, nil
}

// keyedFile is an open control file with a key and a number on each line.
type keyedFile struct{ *os.File }

func openKeyed(dir, name string) (keyedFile, error) {
	f, err := os.Open(filepath.Join(dir, name))
	return keyedFile{f}, err
}

// value reads the number on the line of key. The read is positioned, so it disturbs no other reader.
func (f keyedFile) value(key string) (uint64, error) {
	var buf [512]byte // memory.events has about 100 bytes
	n, err := f.ReadAt(buf[:], 0)
	if n == 0 {
		return 0, err
	}
	for line := range bytes.Lines(buf[:n]) {
		name, number, ok := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
		if ok && string(name) == key {
			return strconv.ParseUint(string(number), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no line %q: %w", f.Name(), key, errdefs.ErrNotImplemented)
}
