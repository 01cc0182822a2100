// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openFileOutput opens a log file, and makes it and its directory where they
// are missing, with the modes of the runc shim
// (containerd-shim-runc-v2/process/io.go, createIO). stdout and stderr may name
// the same file: each append is written as a whole, after all before it.
func openFileOutput(path string) (sink, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, unusable(err)
	}
	return openAppend(path, unix.O_CREAT)
}

// openAppend does not wait even if path turns out to be a fifo without reader.
func openAppend(path string, flags int) (sink, error) {
	fd, err := openFD(path, flags|unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, unusable(err)
	}
	end, err := newPipeEnd(fd, path)
	if err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	return end, nil
}
