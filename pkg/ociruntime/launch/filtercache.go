// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/unixfile"
)

// FilterCache keeps seccomp filters in a directory, for all shims of a machine: libseccomp takes 20 to 40 ms to make
// that of containerd's default profile. A filter is used again for the same profile, by the same file of the shim, on
// the same kernel. Several processes may use the directory at the same time.
type FilterCache struct {
	Dir string // is made if its parent exists; not used if others than its owner, this user, can write to it
}

// maxFilters bounds the files of a cache. The oldest go first. A node has one profile or a few.
const maxFilters = 64

// Filter returns the filter that load loads for profile: that of the cache, else by [Capture]. profile is encoded as
// JSON, to be told from others. A cache that cannot be used or is damaged costs time only.
func (c FilterCache) Filter(profile any, load func() error) (*Filter, error) {
	key, err := c.key(profile)
	if err == nil {
		var f *Filter
		if f, err = c.read(key); err == nil {
			return f, nil
		}
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	f, failure := Capture(load)
	if failure == nil && key != "" {
		err = errors.Join(err, c.write(key, f), c.prune())
	}
	if err != nil {
		log.L.WithError(err).WithField("directory", c.Dir).Warn("cache of seccomp filters")
	}
	return f, failure
}

// key returns the name of the file for a profile: a hash of all that its filter depends on. It checks the directory.
func (c FilterCache) key(profile any) (string, error) {
	if err := os.Mkdir(c.Dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	var dir, shim unix.Stat_t
	if err := unix.Lstat(c.Dir, &dir); err != nil {
		return "", &os.PathError{Op: "lstat", Path: c.Dir, Err: err}
	}
	if dir.Mode&unix.S_IFMT != unix.S_IFDIR || dir.Mode&0o022 != 0 || int(dir.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s: must be a directory that only its owner, this user, can write to", c.Dir)
	}
	if err := unix.Stat("/proc/self/exe", &shim); err != nil {
		return "", os.NewSyscallError("stat", err)
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return "", os.NewSyscallError("uname", err)
	}
	text, err := json.Marshal(profile)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	// What libseccomp and libcontainer make of a profile is a matter of the shim's version.
	_, _ = fmt.Fprintln(hash, shim.Dev, shim.Ino, shim.Size, shim.Mtim, shim.Ctim)
	_, _ = fmt.Fprintf(hash, "%s\n%s\n%s\n%s", kernel.Release, kernel.Version, kernel.Machine, text)
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// A file is a filterHeader and the instructions.
type filterHeader struct {
	Sum   [sha256.Size]byte // of the key and all that follows
	Flags uint64
}

func (c FilterCache) read(key string) (*Filter, error) {
	file, err := os.Open(filepath.Join(c.Dir, key))
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, 1<<16)) // the kernel takes 4096 instructions, 32 KiB
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	return decodeFilter(key, data)
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
	return newFilter(uint(h.Flags), program), nil
}

func encodeFilter(key string, f *Filter) []byte {
	h := filterHeader{Flags: uint64(f.Flags)}
	data := slices.Concat(packed(h), f.Program)
	h.Sum = filterSum(key, data[len(h.Sum):])
	copy(data, h.Sum[:])
	return data
}

func filterSum(key string, data []byte) [sha256.Size]byte {
	return sha256.Sum256(slices.Concat([]byte(key), data))
}

// write makes the file whole: others read it meanwhile, and may write the same.
func (c FilterCache) write(key string, f *Filter) error {
	file, err := os.CreateTemp(c.Dir, "new-")
	if err != nil {
		return err
	}
	_, err = file.Write(encodeFilter(key, f))
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(c.Dir, key))
	}
	if err != nil {
		_ = os.Remove(file.Name()) // else it is pruned one day
	}
	return err
}

// prune removes the oldest files.
func (c FilterCache) prune() error {
	entries, err := os.ReadDir(c.Dir)
	if err != nil || len(entries) <= maxFilters {
		return err
	}
	var files []os.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // else another shim has removed it
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	var errs []error
	for _, f := range files[:max(len(files)-maxFilters, 0)] {
		errs = append(errs, unixfile.Remove(filepath.Join(c.Dir, f.Name())))
	}
	return errors.Join(errs...)
}
