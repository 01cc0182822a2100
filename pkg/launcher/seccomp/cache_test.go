// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
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

func filterOf(t *testing.T, c Cache, profile any, load func() error) *Filter {
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

func TestCache_AFilterIsMadeOnce(t *testing.T) {
	c, loads := Cache{Dir: filepath.Join(t.TempDir(), "filters")}, 0
	first := filterOf(t, c, "mkdir", refuse(unix.SYS_MKDIRAT, &loads))
	if first.Flags != unix.SECCOMP_FILTER_FLAG_LOG || len(first.Program) != 4*unix.SizeofSockFilter || first.BlocksInit {
		t.Errorf("filter %+v", first)
	}
	if again := filterOf(t, c, "mkdir", refuse(unix.SYS_MKDIRAT, &loads)); !reflect.DeepEqual(again, first) || loads != 1 {
		t.Errorf("after %d loads %+v, want %+v after one", loads, again, first)
	}
	if other := filterOf(t, c, "wait4", refuse(unix.SYS_WAIT4, &loads)); !other.BlocksInit || loads != 2 {
		t.Errorf("another profile: after %d loads %+v", loads, other)
	}
	if again := filterOf(t, c, "wait4", refuse(unix.SYS_WAIT4, &loads)); !again.BlocksInit || loads != 2 {
		t.Errorf("the other profile again: after %d loads %+v", loads, again)
	}
	for _, name := range append(files(t, c.Dir), c.Dir) {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: mode %v, %v, want none for others", name, info.Mode(), err)
		}
	}
}

func TestCache_AFailureIsNotKept(t *testing.T) {
	c, loads, failure := Cache{Dir: t.TempDir()}, 0, errors.New("no such action")
	if _, err := c.Filter("p", func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("error = %v, want %v", err, failure)
	}
	filterOf(t, c, "p", refuse(unix.SYS_MKDIRAT, &loads))
	if loads != 1 {
		t.Errorf("%d loads, want one", loads)
	}
}

func TestCache_ADamagedFileIsReplaced(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"empty": func([]byte) []byte { return nil },
		"odd":   func(b []byte) []byte { return append(b, 0) },
	} {
		c, loads := Cache{Dir: t.TempDir()}, 0
		want := filterOf(t, c, "p", refuse(unix.SYS_MKDIRAT, &loads))
		file := files(t, c.Dir)[0]
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, damage(data), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got := filterOf(t, c, "p", refuse(unix.SYS_MKDIRAT, &loads)); !reflect.DeepEqual(got, want) || loads != 2 {
				t.Errorf("%s: after %d loads %+v, want %+v after two", name, loads, got, want)
			}
		}
	}
}

func TestCache_AFullFileSystemIsNoError(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to mount")
	}
	c, loads := Cache{Dir: t.TempDir()}, 0
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
	filterOf(t, c, "p", refuse(unix.SYS_MKDIRAT, &loads))
	if names := files(t, c.Dir); len(names) != 1 {
		t.Errorf("files %v, want only %s", names, full)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		filterOf(t, c, "p", refuse(unix.SYS_MKDIRAT, &loads))
	}
	if loads != 2 {
		t.Errorf("%d loads, want two: one without space, one with", loads)
	}
}

func TestCache_IsEmptiedWhenItIsFull(t *testing.T) {
	c, loads := Cache{Dir: t.TempDir()}, 0
	for i := range maxFilters {
		filterOf(t, c, fmt.Sprint("p", i), refuse(unix.SYS_MKDIRAT, &loads))
	}
	if n := len(files(t, c.Dir)); n != maxFilters {
		t.Fatalf("%d files, want %d", n, maxFilters)
	}
	for range 2 {
		filterOf(t, c, "one more", refuse(unix.SYS_MKDIRAT, &loads))
	}
	if n := len(files(t, c.Dir)); n != 1 || loads != maxFilters+1 {
		t.Errorf("%d files after %d loads, want the last after %d", n, loads, maxFilters+1)
	}
}

// Nobody sees a part of a file.
func TestCache_MayBeUsedByManyAtOnce(t *testing.T) {
	c, loads := Cache{Dir: t.TempDir()}, 0
	want := filterOf(t, c, "p", refuse(unix.SYS_MKDIRAT, &loads))
	want.Program = slices.Repeat(want.Program, 1000) // several pages of a file
	file, err := c.file("p")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.write(file, want); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if err := c.write(file, want); err != nil {
					t.Error(err)
				}
				if f, err := readFilter(file); err != nil || !slices.Equal(f.Program, want.Program) {
					t.Errorf("%+v, %v", f, err)
				}
			}
		})
	}
	all.Wait()
	if names := files(t, c.Dir); len(names) != 1 {
		t.Errorf("files %v, want one", names)
	}
}

func TestCache_AFilterIsOfItsProfileProgramAndKernel(t *testing.T) {
	kernel := func(release, version, machine byte) (u unix.Utsname) {
		u.Release[0], u.Version[0], u.Machine[0] = release, version, machine
		return u
	}
	seen := map[string]int{}
	for i, of := range []struct {
		profile any
		program string
		kernel  unix.Utsname
	}{
		{"p", "program", kernel('1', '2', '3')},
		{"q", "program", kernel('1', '2', '3')},
		{"p", "another", kernel('1', '2', '3')},
		{"p", "program", kernel('9', '2', '3')},
		{"p", "program", kernel('1', '9', '3')},
		{"p", "program", kernel('1', '2', '9')},
	} {
		key, err := filterKey(of.profile, of.program, of.kernel)
		again, _ := filterKey(of.profile, of.program, of.kernel)
		if err != nil || key != again || len(key) != 64 {
			t.Errorf("%d: key %q, then %q, %v", i, key, again, err)
		}
		if other, is := seen[key]; is {
			t.Errorf("%d has the key of %d", i, other)
		}
		seen[key] = i
	}
	if _, err := filterKey(func() {}, "", unix.Utsname{}); err == nil {
		t.Error("what has no JSON has a key")
	}
}

// A test is linked with the libraries of the system. An update of libseccomp makes other filters.
func TestCache_LibrariesArePartOfTheProgram(t *testing.T) {
	text, err := programFiles()
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(text, "\n"); strings.Contains(string(maps), ".so") != (got > 1) {
		t.Errorf("%d files:\n%s, of\n%s", got, text, maps)
	}
}
