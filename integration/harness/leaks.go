// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// leakPatience is how long what a test made may stay after the test's end: the last Delete makes containerd ask the
// shim to shut down, and nobody waits for the shim's end.
var leakPatience = patience / 4

// Scope is where everything is that belongs to one test. Only one test may run in it at a time.
type Scope struct {
	Namespace string   // names the shims of the test, the directory of their states, and "/"+Namespace its cgroups
	Address   string   // containerd's: names the shims instead, where tests cannot choose the namespace
	Dirs      []string // must be empty or absent at the end
	MountsIn  string   // nothing may be mounted below
}

// NamespacePrefix begins the name of everything that a test makes outside of the directories that Go gives it.
const NamespacePrefix = "shim-test-"

// StateRoot is where libcontainer keeps the states of a namespace's containers, unless the option Root says otherwise.
func StateRoot(namespace string) string { return filepath.Join("/run/containerd/runc", namespace) }

// check refuses a scope in which a mistake could reach what is not a test's: Remove kills and deletes as root.
func (s Scope) check() error {
	if !strings.HasPrefix(s.Namespace, NamespacePrefix) || len(s.Namespace) == len(NamespacePrefix) ||
		strings.Contains(s.Namespace, "/") {
		return fmt.Errorf("namespace %q of a test: want %s and a name", s.Namespace, NamespacePrefix)
	}
	dirs := append([]string{s.MountsIn}, s.Dirs...)
	if s.Address != "" {
		dirs = append(dirs, s.Address)
	}
	for _, dir := range dirs {
		if !strings.Contains(dir, NamespacePrefix) {
			return fmt.Errorf("directory %q of a test: no part begins with %s", dir, NamespacePrefix)
		}
	}
	return nil
}

// Leaks names everything of the scope that there is.
func (s Scope) Leaks() []string {
	if err := s.check(); err != nil {
		return []string{err.Error()}
	}
	var leaks []string
	seen := map[int]bool{}
	for _, p := range s.procs() {
		// A zombie is not counted: it has ended, and when its shim is gone too it is for the machine's init to collect.
		// What a living shim has not collected is found by Zombies.
		if !seen[p.Pid] && Alive(p.Pid) {
			seen[p.Pid] = true
			leaks = append(leaks, p.String())
		}
	}
	points, err := mountsBelow(s.MountsIn)
	leaks = appendLeaks(leaks, "mount", points, err)
	groups, err := cgroupsBelow("/" + s.Namespace)
	leaks = appendLeaks(leaks, "cgroup", groups, err)
	for _, dir := range append([]string{StateRoot(s.Namespace)}, s.Dirs...) {
		names, err := entries(dir)
		leaks = appendLeaks(leaks, "file", names, err)
	}
	return leaks
}

func (s Scope) procs() []Proc {
	list := append(s.shims(), inCgroup("/"+s.Namespace)...) // also of a pod, with what holds its namespaces
	for _, dir := range s.Dirs {
		list = append(list, below(dir)...)
	}
	return list
}

func (s Scope) shims() []Proc {
	if s.Address != "" {
		return ShimsOf(s.Address, "")
	}
	return Shims(s.Namespace, "")
}

func appendLeaks(leaks []string, kind string, names []string, err error) []string {
	if err != nil {
		leaks = append(leaks, fmt.Sprintf("%s: %v", kind, err))
	}
	for _, name := range names {
		leaks = append(leaks, kind+" "+name)
	}
	return leaks
}

// entries lists what is in dir, the first level only: the names under it say enough.
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range list {
		names = append(names, filepath.Join(dir, e.Name()))
	}
	return names, err
}

// Check fails the test when something of the scope is still there some time after the call, and names it. It always
// removes everything, so that a leak fails one test only. A test that has failed did not clean up: its leaks are
// reported without waiting for them to go.
func (s Scope) Check(tb testing.TB) {
	tb.Helper()
	limit, report := leakPatience, tb.Errorf
	if tb.Failed() {
		limit, report = 0, tb.Logf
	}
	err := poll(limit, func() error {
		if leaks := s.Leaks(); len(leaks) > 0 {
			return errors.New(strings.Join(leaks, "\n\t"))
		}
		return nil
	})
	if err != nil {
		report("left behind:\n\t%v", err)
	}
	if err := s.Remove(); err != nil {
		tb.Errorf("clean up: %v", err)
	}
}

// CheckSince fails the test when left returns something that is not in before, still some time after the call. It
// returns what is there then.
func CheckSince(tb testing.TB, before []string, left func() []string) (now []string) {
	tb.Helper()
	err := poll(leakPatience, func() error {
		now = left()
		more := slices.DeleteFunc(slices.Clone(now), func(leak string) bool { return slices.Contains(before, leak) })
		if len(more) > 0 {
			return errors.New(strings.Join(more, "\n\t"))
		}
		return nil
	})
	if err != nil {
		tb.Errorf("left behind:\n\t%v", err)
	}
	return now
}

// Remove kills, unmounts and removes everything of the scope.
func (s Scope) Remove() error {
	if err := s.check(); err != nil {
		return err
	}
	for _, p := range s.procs() {
		_ = unix.Kill(p.Pid, unix.SIGKILL) // it may be gone
	}
	err := errors.Join(RemoveCgroups("/"+s.Namespace), unmountBelow(s.MountsIn), os.RemoveAll(StateRoot(s.Namespace)))
	for _, dir := range s.Dirs {
		names, e := entries(dir)
		err = errors.Join(err, e)
		for _, name := range names {
			err = errors.Join(err, os.RemoveAll(name))
		}
	}
	return err
}

// Mounts lists what is mounted in the scope.
func (s Scope) Mounts() []string {
	points, err := mountsBelow(s.MountsIn)
	return appendLeaks(points, "mount", nil, err)
}
