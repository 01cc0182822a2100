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
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Cache keeps seccomp filters in a directory, for all processes of a machine: libseccomp takes 20 to 40 ms to make
// that of containerd's default profile. A filter is used again for the same profile, by the same files of the program
// and its libraries, on the same kernel. Several processes may use the directory at the same time.
type Cache struct {
	Dir string // is made if its parent exists; not used if others than its owner, this user, can write to it

	// Warn is called with the reason why the cache cannot be used; nil to ignore it.
	Warn func(error)
}

const (
	maxFilters      = 64   // files of a cache; those that were not used for longest go. A node has a few profiles
	maxInstructions = 4096 // of a filter that the kernel takes (BPF_MAXINSNS)
)

// Filter returns the filter that load loads for profile: that of the cache, else by [Capture]. Profiles are compared by
// their JSON. A cache that cannot be used or is damaged costs time only.
func (c Cache) Filter(profile any, load func() error) (*Filter, error) {
	dir, key, err := c.open(profile)
	if err == nil {
		defer func() { _ = dir.Close() }() // it was opened to look things up
		var f *Filter
		if f, err = readFilter(dir, key); err == nil {
			return f, nil
		}
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	f, failure := Capture(load)
	if failure == nil && dir != nil {
		err = errors.Join(err, writeFilter(dir, key, f), prune(dir, key))
	}
	if err != nil && c.Warn != nil {
		c.Warn(err)
	}
	return f, failure
}

// open opens the directory and returns the name of the file for a profile.
func (c Cache) open(profile any) (dir *os.Root, key string, err error) {
	program, err := programFiles()
	if err != nil {
		return nil, "", err
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return nil, "", os.NewSyscallError("uname", err)
	}
	if key, err = filterKey(profile, program, kernel); err != nil {
		return nil, "", err
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, "", err
	}
	fd, err := unix.Open(c.Dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", &os.PathError{Op: "open", Path: c.Dir, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // dir has its own
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return nil, "", os.NewSyscallError("fstat", err)
	}
	if is.Mode&0o022 != 0 || int(is.Uid) != os.Geteuid() {
		return nil, "", fmt.Errorf("%s: must be a directory that only its owner, this user, can write to", c.Dir)
	}
	dir, err = os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	return dir, key, err
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

// A file is a filterHeader and the instructions.
type filterHeader struct {
	Sum   [sha256.Size]byte // of the key and all that follows
	Flags uint64
}

func readFilter(dir *os.Root, key string) (*Filter, error) {
	file, err := dir.Open(key)
	if err != nil {
		return nil, err
	}
	const largest = sha256.Size + 8 + maxInstructions*unix.SizeofSockFilter
	data, err := io.ReadAll(io.LimitReader(file, largest+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	f, err := decodeFilter(key, data)
	if err == nil {
		now := time.Now()
		_ = dir.Chtimes(key, now, now) // else it may go earlier
	}
	return f, err
}

func decodeFilter(key string, data []byte) (*Filter, error) {
	var h filterHeader
	n, err := binary.Decode(data, binary.LittleEndian, &h)
	if err != nil || (len(data)-n)%unix.SizeofSockFilter != 0 || h.Sum != filterSum(key, data[len(h.Sum):]) {
		return nil, fmt.Errorf("damaged file %s", key)
	}
	program := make([]unix.SockFilter, (len(data)-n)/unix.SizeofSockFilter)
	if _, err := binary.Decode(data[n:], binary.LittleEndian, program); err != nil {
		return nil, err
	}
	return NewFilter(uint(h.Flags), program), nil
}

func encodeFilter(key string, f *Filter) []byte {
	h := filterHeader{Flags: uint64(f.Flags)}
	data, _ := binary.Append(nil, binary.LittleEndian, h) // its size is fixed
	data = append(data, f.Program...)
	h.Sum = filterSum(key, data[len(h.Sum):])
	copy(data, h.Sum[:])
	return data
}

func filterSum(key string, data []byte) [sha256.Size]byte {
	return sha256.Sum256(slices.Concat([]byte(key), data))
}

// writeFilter puts the whole file in place at once: others read it meanwhile, and may write the same.
func writeFilter(dir *os.Root, key string, f *Filter) error {
	if len(f.Program) > maxInstructions*unix.SizeofSockFilter {
		return nil // the kernel refuses it anyway
	}
	name := fmt.Sprintf("%s%d-%d", unfinished, os.Getpid(), writes.Add(1))
	err := dir.WriteFile(name, encodeFilter(key, f), 0o600)
	if err == nil {
		err = dir.Rename(name, key)
	}
	if err != nil {
		_ = dir.Remove(name) // it may not be there; else it is pruned one day
	}
	return err
}

// unfinished begins the names of files that are not in place yet; writes counts those of this process.
const unfinished = "new-"

var writes atomic.Uint64

// prune removes the files that were not used for longest, but for that of key.
func prune(dir *os.Root, key string) error {
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil || len(entries) <= maxFilters {
		return err
	}
	var files []os.FileInfo
	for _, e := range entries {
		ours := strings.HasPrefix(e.Name(), unfinished) || len(e.Name()) == len(key) && e.Name() != key
		if info, err := e.Info(); err == nil && ours { // else another process has removed it
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	var errs []error
	for _, f := range files[:min(len(entries)-maxFilters, len(files))] {
		if err := dir.Remove(f.Name()); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
