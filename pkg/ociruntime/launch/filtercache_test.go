// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refuse loads a filter that refuses a system call, and allows all others.
func refuse(call uint32, loads *int) func() error {
	return func() error {
		*loads++
		program := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
		_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_LOG,
			uintptr(unsafe.Pointer(&fprog)))
		if errno != 0 {
			return errno
		}
		return nil
	}
}

func filterOf(t *testing.T, c FilterCache, profile any, load func() error) *Filter {
	t.Helper()
	f, err := c.Filter(profile, load)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, filepath.Join(dir, e.Name()))
	}
	return names
}

func TestFilterCache_AFilterIsMadeOnce(t *testing.T) {
	c, loads := FilterCache{filepath.Join(t.TempDir(), "filters")}, 0
	first := filterOf(t, c, "mkdir", refuse(unix.SYS_MKDIR, &loads))
	if first.Flags != unix.SECCOMP_FILTER_FLAG_LOG || len(first.Program) != 4*unix.SizeofSockFilter || first.BlocksInit() {
		t.Errorf("filter %+v", first)
	}
	if again := filterOf(t, c, "mkdir", refuse(unix.SYS_MKDIR, &loads)); !reflect.DeepEqual(again, first) || loads != 1 {
		t.Errorf("after %d loads %+v, want %+v after one", loads, again, first)
	}
	if other := filterOf(t, c, "wait4", refuse(unix.SYS_WAIT4, &loads)); !other.BlocksInit() || loads != 2 {
		t.Errorf("another profile: after %d loads %+v", loads, other)
	}
	if again := filterOf(t, c, "wait4", refuse(unix.SYS_WAIT4, &loads)); !again.BlocksInit() || loads != 2 {
		t.Errorf("the other profile again: after %d loads %+v", loads, again)
	}
	for _, name := range append(files(t, c.Dir), c.Dir) {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: mode %v, %v, want none for others", name, info.Mode(), err)
		}
	}
}

func TestFilterCache_AFailureIsNotKept(t *testing.T) {
	c, loads, failure := FilterCache{t.TempDir()}, 0, errors.New("no such action")
	if _, err := c.Filter("p", func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("error = %v, want %v", err, failure)
	}
	filterOf(t, c, "p", refuse(unix.SYS_MKDIR, &loads))
	if loads != 1 {
		t.Errorf("%d loads, want one", loads)
	}
}

func TestFilterCache_ADamagedFileIsReplaced(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"empty":        func([]byte) []byte { return nil },
		"cut":          func(b []byte) []byte { return b[:len(b)-unix.SizeofSockFilter] },
		"odd":          func(b []byte) []byte { return append(b, 0) },
		"too long":     func(b []byte) []byte { return append(b, make([]byte, 1<<20)...) },
		"another flag": func(b []byte) []byte { b[32]++; return b },
		"allows more":  func(b []byte) []byte { b[len(b)-2*unix.SizeofSockFilter+6] = 0xff; return b },
	} {
		c, loads := FilterCache{t.TempDir()}, 0
		want := filterOf(t, c, "p", refuse(unix.SYS_MKDIR, &loads))
		file := files(t, c.Dir)[0]
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, damage(data), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got := filterOf(t, c, "p", refuse(unix.SYS_MKDIR, &loads)); !reflect.DeepEqual(got, want) || loads != 2 {
				t.Errorf("%s: after %d loads %+v, want %+v after two", name, loads, got, want)
			}
		}
	}
}

// A file does not stand for another profile, whoever copied it.
func TestFilterCache_AFileIsThatOfItsName(t *testing.T) {
	c, loads := FilterCache{t.TempDir()}, 0
	filterOf(t, c, "p", refuse(unix.SYS_MKDIR, &loads))
	p := files(t, c.Dir)[0]
	want := filterOf(t, c, "q", refuse(unix.SYS_WAIT4, &loads))
	for _, q := range files(t, c.Dir) {
		data, err := os.ReadFile(p)
		if err == nil {
			err = os.WriteFile(q, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := filterOf(t, c, "q", refuse(unix.SYS_WAIT4, &loads)); !reflect.DeepEqual(got, want) || loads != 3 {
		t.Errorf("after %d loads %+v, want %+v after three", loads, got, want)
	}
}

func TestFilterCache_ADirectoryOfOthersIsNotUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to give a directory away")
	}
	for name, prepare := range map[string]func(dir string) error{
		"group can write":  func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)) },
		"others can write": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o702)) },
		"another's":        func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1, 1)) },
		"a link":           func(dir string) error { return errors.Join(os.Mkdir(dir+"2", 0o700), os.Symlink(dir+"2", dir)) },
		"a file":           func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"no parent":        func(dir string) error { return os.Remove(filepath.Dir(dir)) },
	} {
		parent := filepath.Join(t.TempDir(), "parent")
		if err := os.Mkdir(parent, 0o700); err != nil {
			t.Fatal(err)
		}
		c, loads := FilterCache{filepath.Join(parent, "filters")}, 0
		if err := prepare(c.Dir); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			filterOf(t, c, "p", refuse(unix.SYS_MKDIR, &loads))
		}
		if loads != 2 {
			t.Errorf("%s: %d loads, want two", name, loads)
		}
		if entries, _ := os.ReadDir(c.Dir); len(entries) > 0 {
			t.Errorf("%s: %v was written", name, entries)
		}
	}
}

func TestFilterCache_AFullFileSystemIsNoError(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to mount")
	}
	c, loads := FilterCache{t.TempDir()}, 0
	if err := unix.Mount("tmpfs", c.Dir, "tmpfs", 0, "mode=700,size=4k"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(c.Dir, 0); err != nil {
			t.Error(err)
		}
	}()
	full := filepath.Join(c.Dir, "full")
	if err := os.WriteFile(full, make([]byte, os.Getpagesize()), 0o600); err != nil {
		t.Fatal(err)
	}
	filterOf(t, c, "p", refuse(unix.SYS_MKDIR, &loads))
	if names := files(t, c.Dir); len(names) != 1 {
		t.Errorf("files %v, want only %s", names, full)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		filterOf(t, c, "p", refuse(unix.SYS_MKDIR, &loads))
	}
	if loads != 2 {
		t.Errorf("%d loads, want two: one without space, one with", loads)
	}
}

func TestFilterCache_OldFilesGo(t *testing.T) {
	c, loads := FilterCache{t.TempDir()}, 0
	for i := range maxFilters + 3 {
		filterOf(t, c, fmt.Sprint("p", i), refuse(unix.SYS_MKDIR, &loads))
		all := files(t, c.Dir)
		if len(all) > maxFilters {
			t.Fatalf("%d files, want at most %d", len(all), maxFilters)
		}
		if i == 0 {
			if err := os.Chtimes(all[0], time.Time{}, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := loads
	filterOf(t, c, fmt.Sprint("p", maxFilters+2), refuse(unix.SYS_MKDIR, &loads))
	if loads != before {
		t.Error("the newest has gone")
	}
	filterOf(t, c, "p0", refuse(unix.SYS_MKDIR, &loads))
	if loads != before+1 {
		t.Error("the oldest has not gone")
	}
}

func TestFilterCache_MayBeUsedByManyAtOnce(t *testing.T) {
	c := FilterCache{t.TempDir()}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			loads := 0
			if f, err := c.Filter("p", refuse(unix.SYS_MKDIR, &loads)); err != nil || len(f.Program) == 0 {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	all.Wait()
	if names := files(t, c.Dir); len(names) != 1 {
		t.Errorf("files %v, want one", names)
	}
}

func FuzzDecodeFilter(f *testing.F) {
	good := &Filter{Program: make([]byte, 2*unix.SizeofSockFilter)}
	f.Add("key", encodeFilter("key", good))
	f.Add("key", encodeFilter("key", &Filter{}))
	f.Add("other", encodeFilter("key", good))
	f.Fuzz(func(t *testing.T, key string, data []byte) {
		got, err := decodeFilter(key, data)
		if err == nil && !reflect.DeepEqual(encodeFilter(key, got), data) {
			t.Errorf("%q, % x: %+v", key, data, got)
		}
		_, _ = decodeFilter(key, encodeFilter(key, &Filter{Program: data})) // any program
	})
}
