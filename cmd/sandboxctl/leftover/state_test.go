// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

// group makes a cgroup with processes, and returns its path and a scan of its machine.
func group(t *testing.T, procs string) (string, *Scan) {
	t.Helper()
	s := &Scan{Config: Config{Root: machine.Root(t.TempDir())}}
	dir := s.Root.Path(machine.CgroupRoot, "c")
	must(t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, procsFile), []byte(procs), 0o600)))
	return machine.CgroupRoot + "/c", s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A container nests cgroups from one directory to the next.
func TestProcesses_AreSeenDeeperThanAPathCanName(t *testing.T) {
	path, s := group(t, "7\n")
	here, err := os.OpenRoot(s.Root.Path(path))
	must(t, err)
	for range 2 * unix.PathMax / 10 {
		must(t, here.Mkdir("directory", 0o755))
		next, err := here.OpenRoot("directory")
		must(t, errors.Join(err, here.Close()))
		here = next
		must(t, here.WriteFile(procsFile, []byte("7\n"), 0o600))
	}
	must(t, errors.Join(here.WriteFile(procsFile, []byte("8\n7\n"), 0o600), here.Close()))
	if pids, err := s.processes([]string{path}); err != nil || !slices.Equal(pids, []int{7, 8}) {
		t.Errorf("processes = %v, %v, want 7 and 8", pids, err)
	}
}

func TestProcesses_ErrorIsNotTakenForNone(t *testing.T) {
	path, s := group(t, "7\n")
	must(t, os.MkdirAll(s.Root.Path(path, "nested", procsFile), 0o755))
	if pids, err := s.processes([]string{path}); err == nil {
		t.Errorf("processes = %v where a list cannot be read, want an error", pids)
	}
	path, s = group(t, "7\nx\n")
	if pids, err := s.processes([]string{path}); err == nil {
		t.Errorf("processes = %v where a list has no numbers, want an error", pids)
	}
	if pids, err := s.processes([]string{path + "/gone"}); err != nil || len(pids) > 0 {
		t.Errorf("processes = %v, %v of a cgroup that is gone, want none", pids, err)
	}
}

func TestProcesses_OfHalfAMillion(t *testing.T) {
	const n = 500_000
	var procs strings.Builder
	for pid := range n {
		procs.WriteString(strconv.Itoa(pid+1) + "\n")
	}
	path, s := group(t, procs.String())
	listed := make(chan int, 1)
	go func() { // it ends with the program if it takes longer
		pids, _ := s.processes([]string{path, path}) // an error is that of the length
		listed <- len(pids)
	}()
	select {
	case got := <-listed:
		if got != n {
			t.Errorf("%d processes, want %d", got, n)
		}
	case <-time.After(time.Minute):
		t.Error("the processes are not listed after a minute")
	}
}
