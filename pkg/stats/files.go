// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// source is a control file and what its text says about a message.
type source[M any] struct {
	name  string
	older string // its name in kernels that lack the first, or ""
	parse func(text []byte, m M) error
}

// single is a file that holds one number, or the word max, which stands for unlimited.
func single[M any](name string, unlimited uint64, of func(M) *uint64) source[M] {
	return source[M]{name: name, parse: func(text []byte, m M) (err error) {
		*of(m), err = number(text, unlimited)
		return err
	}}
}

// keyed is a file of lines with a key and a number (cgroup-v2.rst, "flat keyed"), whose numbers go into the part of the
// message that of returns.
func keyed[M, P any](name string, f fields[P], of func(M) *P) source[M] {
	return source[M]{name: name, parse: func(text []byte, m M) error { return parseKeyed(text, f, of(m)) }}
}

// ensure returns *p, and allocates it if it is nil.
func ensure[T any](p **T) *T {
	if *p == nil {
		*p = new(T)
	}
	return *p
}

// findOrAppend returns the entry of list that has the key, and appends one if there is none.
func findOrAppend[T any](list *[]*T, keyOf func(*T) *string, key string) *T {
	for _, entry := range *list {
		if *keyOf(entry) == key {
			return entry
		}
	}
	entry := new(T)
	*keyOf(entry) = key
	*list = append(*list, entry)
	return entry
}

// directory is a directory of a cgroup with the files to read in it, in this order.
type directory[M any] struct {
	dir     string
	sources []source[M]
}

// files reads a message from the files of a cgroup and keeps them open.
type files[M Metrics] struct {
	make func() M
	dirs func() []directory[M]

	open []opened[M]
	buf  []byte
}

type opened[M any] struct {
	*os.File
	parse func(text []byte, m M) error
}

// firstBuffer holds every file of a container that uses few block devices.
const firstBuffer = 4096

// read returns the message from the files that exist. errStale means that the open files are no longer those of the
// cgroup.
func (f *files[M]) read() (Metrics, error) {
	if f.open == nil {
		if err := f.openAll(); err != nil {
			f.close()
			return nil, err
		}
	}
	m := f.make()
	for _, file := range f.open {
		text, err := f.text(file.File)
		switch {
		case errors.Is(err, unix.EOPNOTSUPP): // pressure on a kernel that accounts none (psi=0)
			continue
		case errors.Is(err, unix.ENODEV):
			return nil, errStale
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: file.Name(), Err: err}
		}
		if err := file.parse(text, m); err != nil {
			return nil, fmt.Errorf("parse %s: %w", file.Name(), err)
		}
	}
	return m, nil
}

// errStale: a control file answers ENODEV once its cgroup was removed or its controller disabled.
var errStale = errors.New("control files are gone")

// openAll opens the files that exist. Kernels and cgroups lack some.
func (f *files[M]) openAll() error {
	f.buf = make([]byte, firstBuffer)
	for _, d := range f.dirs() {
		for _, s := range d.sources {
			file, err := openControl(filepath.Join(d.dir, s.name))
			if errors.Is(err, fs.ErrNotExist) && s.older != "" {
				file, err = openControl(filepath.Join(d.dir, s.older))
			}
			switch {
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV):
				continue
			case err != nil:
				return err
			}
			f.open = append(f.open, opened[M]{file, s.parse})
		}
	}
	return nil
}

// openControl opens a control file. With os.Open Go's poller would watch it, and wake up for memory.events and the
// pressure files.
func openControl(path string) (*os.File, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case !errors.Is(err, unix.EINTR):
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// text returns the contents of a control file; they are valid until the next call. A read from the start makes the
// kernel write the text anew, and returns all of it at once.
func (f *files[M]) text(file *os.File) ([]byte, error) {
	defer runtime.KeepAlive(file)
	for {
		n, err := unix.Pread(int(file.Fd()), f.buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n < len(f.buf):
			return f.buf[:n], nil
		default: // there may be more
			f.buf = make([]byte, 2*len(f.buf))
		}
	}
}

// close closes the files. The next read opens them again.
func (f *files[M]) close() {
	for _, file := range f.open {
		_ = file.Close() // nothing was written
	}
	f.open, f.buf = nil, nil
}

// hugePages lists the sizes of huge pages that the cgroup counts, as the kernel writes them, such as 2MB. For each
// there is a file hugetlb.SIZE.LAST.
func hugePages(dir, last string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // the cgroup is gone, as Reader will see
	}
	var sizes []string
	for _, e := range entries {
		name, ours := strings.CutPrefix(e.Name(), "hugetlb.")
		size, ends := strings.CutSuffix(name, "."+last)
		if ours && ends && !strings.Contains(size, ".") { // not hugetlb.SIZE.rsvd.LAST
			sizes = append(sizes, size)
		}
	}
	return sizes
}
