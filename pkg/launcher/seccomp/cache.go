// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Cache keeps seccomp filters in a directory, for all processes of a machine: libseccomp takes 20 to 40 ms for that of
// containerd's default profile. A filter is that of a profile, of the program with its libraries, and of the kernel.
type Cache struct {
	Dir string // is made if its parent exists

	// Warn is called with the reason why the cache cannot be used; nil to ignore it.
	Warn func(error)
}

// maxFilters is how many files a cache has. A node has a few profiles; a full cache is emptied.
const maxFilters = 64

// Filter returns the filter that load loads for profile: that of the cache, else by [Capture]. Profiles are compared by
// their JSON. A cache that cannot be used costs time only.
func (c Cache) Filter(profile any, load func() error) (*Filter, error) {
	file, err := c.file(profile)
	if err == nil {
		var f *Filter
		if f, err = readFilter(file); err == nil {
			return f, nil
		}
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	f, failure := Capture(load)
	if failure == nil && file != "" {
		err = errors.Join(err, c.write(file, f))
	}
	if err != nil && c.Warn != nil {
		c.Warn(err)
	}
	return f, failure
}

// file returns the file for a profile.
func (c Cache) file(profile any) (string, error) {
	program, err := programFiles()
	if err != nil {
		return "", err
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return "", os.NewSyscallError("uname", err)
	}
	key, err := filterKey(profile, program, kernel)
	if err != nil {
		return "", err
	}
	return filepath.Join(c.Dir, key), nil
}

// programFiles identifies the files whose code runs in this process: the program, and libraries unless it is static.
// What libseccomp and its callers make of a profile is a matter of these.
var programFiles = sync.OnceValues(func() (string, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return "", err
	}
	files := []string{"/proc/self/exe"} // also if it has been replaced since
	for line := range strings.Lines(string(maps)) {
		mapping, name, isFile := strings.Cut(strings.TrimSuffix(line, "\n"), "/")
		if name = "/" + name; isFile && strings.Contains(mapping, "x") && name != self && !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	var text strings.Builder
	for _, name := range files {
		var is unix.Stat_t
		if err := unix.Stat(name, &is); err != nil {
			return "", &os.PathError{Op: "stat", Path: name, Err: err}
		}
		_, _ = fmt.Fprintln(&text, is.Dev, is.Ino, is.Size, is.Mtim, is.Ctim)
	}
	return text.String(), nil
})

// filterKey is a hash of all that the filter for a profile depends on.
func filterKey(profile any, program string, kernel unix.Utsname) (string, error) {
	text, err := json.Marshal(profile)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	_, _ = fmt.Fprintf(hash, "%s\n%s\n%s\n%s\n%s", program, kernel.Release, kernel.Version, kernel.Machine, text)
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// A file is the flags, in eight bytes, and the instructions.
func readFilter(file string) (*Filter, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(data) <= 8 || len(data)%unix.SizeofSockFilter != 0 {
		return nil, fmt.Errorf("damaged file %s", file)
	}
	program := make([]unix.SockFilter, (len(data)-8)/unix.SizeofSockFilter)
	_, err = binary.Decode(data[8:], binary.LittleEndian, program)
	return NewFilter(uint(binary.LittleEndian.Uint64(data)), program), err
}

// write puts the whole file in place at once: others read it meanwhile, and may write the same.
func (c Cache) write(file string, f *Filter) error {
	if err := os.Mkdir(c.Dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if all, err := os.ReadDir(c.Dir); err == nil && len(all) >= maxFilters {
		for _, e := range all {
			_ = os.Remove(filepath.Join(c.Dir, e.Name())) // or another process has
		}
	}
	unfinished, err := os.CreateTemp(c.Dir, "new-")
	if err != nil {
		return err
	}
	_, err = unfinished.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(f.Flags)), f.Program...))
	if err = errors.Join(err, unfinished.Close()); err == nil {
		err = os.Rename(unfinished.Name(), file)
	}
	if err != nil {
		_ = os.Remove(unfinished.Name()) // else it goes when the cache is full
	}
	return err
}
