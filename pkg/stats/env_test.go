// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/stats"
)

// hierarchiesV1 are the controllers of v1 and where they are mounted.
func hierarchiesV1(tb testing.TB) map[string]string {
	tb.Helper()
	if cgroups.Mode() == cgroups.Unified {
		testx.Lacking(tb, "cgroup1", "cgroup v1 hierarchies at /sys/fs/cgroup")
	}
	roots := make(map[string]string)
	for _, name := range []string{"memory", "pids", "cpu", "cpuacct", "blkio", "freezer"} {
		roots[name] = "/sys/fs/cgroup/" + name
	}
	return roots
}

// hierarchyV2 is where cgroup v2 is mounted: alone, or on hybrid with hardly a controller.
func hierarchyV2(tb testing.TB) map[string]string {
	tb.Helper()
	switch cgroups.Mode() {
	case cgroups.Unified:
		return map[string]string{"": "/sys/fs/cgroup"}
	case cgroups.Hybrid:
		return map[string]string{"": "/sys/fs/cgroup/unified"}
	case cgroups.Legacy, cgroups.Unavailable:
		testx.Lacking(tb, "cgroup2", "a cgroup v2 hierarchy")
	}
	return nil
}

// unified is hierarchyV2 where it has the controllers.
func unified(tb testing.TB) map[string]string {
	tb.Helper()
	if cgroups.Mode() != cgroups.Unified {
		testx.Lacking(tb, "cgroup2", "cgroup v2 with its controllers at /sys/fs/cgroup")
	}
	return hierarchyV2(tb)
}

var serial atomic.Int64

// makeCgroup makes a cgroup in the given hierarchies or below the given cgroup, and removes it after the test. The name
// says which test binary it is of.
func makeCgroup(tb testing.TB, parents map[string]string) map[string]string {
	tb.Helper()
	testx.NeedRoot(tb)
	paths := make(map[string]string)
	name := fmt.Sprintf("shim-test-stats-%d-%d", os.Getpid(), serial.Add(1))
	for controller, parent := range parents {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // cpu and cpuacct may be one
			tb.Fatal(err)
		}
		tb.Cleanup(func() { removeDir(tb, dir) })
		paths[controller] = dir
	}
	return paths
}

// control writes to a control file.
func control(tb testing.TB, dir, file, value string) {
	tb.Helper()
	testx.Must(tb, os.WriteFile(filepath.Join(dir, file), []byte(value), 0))
}

// removeDir removes a cgroup. The kernel refuses for a moment after the last process ended.
func removeDir(tb testing.TB, dir string) {
	tb.Helper()
	testx.Eventually(tb, "remove "+dir, func() bool {
		err := os.Remove(dir)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
}

// process runs a shell with the given commands in a cgroup and returns when it printed a line. It ends with the test.
func process(tb testing.TB, paths map[string]string, commands string) {
	tb.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read go; "+commands+"; echo; read end")
	stdin, err := cmd.StdinPipe()
	testx.Must(tb, err)
	stdout, err := cmd.StdoutPipe()
	testx.Must(tb, err)
	testx.Must(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // the signal is what is wanted
	})
	for _, dir := range paths {
		control(tb, dir, "cgroup.procs", strconv.Itoa(cmd.Process.Pid))
	}
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		tb.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		tb.Fatal(err)
	}
}

// someWork uses some CPU and memory.
const someWork = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; x=$(head -c 1000000 /dev/zero | tr '\\0' x)"

// busy makes a cgroup with a process in it that did someWork.
func busy(tb testing.TB, parents map[string]string) *cgroup.Cgroup {
	tb.Helper()
	paths := makeCgroup(tb, parents)
	process(tb, paths, someWork)
	return cgroup.New(paths)
}

func open(tb testing.TB, c *cgroup.Cgroup) *stats.Reader {
	tb.Helper()
	r, err := stats.New(c)
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	tb.Cleanup(r.Close)
	return r
}

// read returns the metrics that r reads, which must be an M.
func read[M proto.Message](tb testing.TB, r *stats.Reader) M {
	tb.Helper()
	m, err := r.Read()
	if err != nil {
		tb.Fatalf("Read: %v", err)
	}
	metrics, ok := m.(M)
	if !ok {
		tb.Fatalf("Read returns a %T, want a %T", m, metrics)
	}
	return metrics
}

// steady returns what ours and theirs say about one moment: theirs is the same before and after ours. The kernel
// settles its accounts for a while after the process began to wait.
func steady[A, B any](tb testing.TB, ours func() A, theirs func() B) (A, B) {
	tb.Helper()
	for range 1000 {
		before := theirs()
		got := ours()
		if after := theirs(); cmp.Equal(before, after, protocmp.Transform()) {
			return got, after
		}
	}
	tb.Fatal("the numbers of the cgroup do not come to rest")
	panic("not reached")
}

// number returns what a control file holds.
func number(tb testing.TB, dir, file string) uint64 {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(dir, file))
	testx.Must(tb, err)
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	testx.Must(tb, err)
	return n
}
