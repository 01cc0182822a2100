// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/cgroups/v3"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/stats"
)

// versions are those of cgroups, and where each is mounted.
var versions = map[string]func(testing.TB) map[string]string{"v1": hierarchiesV1, "v2": hierarchyV2}

// whole reports whether nothing is missing of an idle cgroup's metrics.
func whole(m stats.Metrics) bool {
	switch m := m.(type) {
	case *v1.Metrics:
		return m.Pids != nil && m.CPU != nil && m.Memory != nil && m.MemoryOomControl != nil
	case *v2.Metrics:
		return m.CPU != nil && (cgroups.Mode() != cgroups.Unified || m.Pids != nil && m.Memory != nil)
	}
	return false
}

func TestReader_CgroupRemovedMeanwhileIsCompleteOrNotFound(t *testing.T) {
	for version, hierarchies := range versions {
		t.Run(version, func(t *testing.T) {
			parents := hierarchies(t)
			for range 100 {
				paths := makeCgroup(t, parents)
				r := open(t, cgroup.New(paths))
				if _, err := r.Read(); err != nil {
					t.Fatal(err)
				}
				removed := make(chan struct{})
				go func() {
					defer close(removed)
					for _, dir := range paths {
						if err := os.Remove(dir); err != nil {
							t.Error(err)
						}
					}
				}()
				for gone := false; !gone; {
					select {
					case <-removed:
						gone = true
					default:
					}
					m, err := r.Read()
					switch {
					case errdefs.IsNotFound(err):
					case err != nil || gone:
						t.Errorf("Read: %v, %v, want metrics or, at the end, not found", m, err)
					case len(paths) == 1 && !whole(m): // of v1 some hierarchies are gone before the others
						t.Errorf("Read: %v, want all metrics or not found", m)
					}
				}
			}
		})
	}
}

func TestReader_NamesAFileThatItCannotParse(t *testing.T) {
	for _, tt := range []struct {
		controller, file, content, want string
	}{
		{"pids", "pids.current", "many\n", `pids.current: "many": must be a number`},
		{"cpu", "cpu.stat", "nr_new x\nnr_periods y\n", `cpu.stat: nr_periods: "y": must be a number`},
		{"blkio", "blkio.throttle.io_serviced", "8:0 Read z\n", `blkio.throttle.io_serviced: 8:0 Read: "z": must be a number`},
		{"", "io.stat", "8:0 rios=-x\n", `io.stat: 8:0: rios: "-x": must be a number`},
		{"", "cpu.pressure", "some avg10=101.00\n", `cpu.pressure: some: avg10: "101.00": must be a number from 0 to 100`},
	} {
		dir := t.TempDir()
		testx.Write(t, filepath.Join(dir, tt.file), tt.content)
		_, err := open(t, cgroup.New(map[string]string{tt.controller: dir})).Read()
		if err == nil || !errdefs.IsInternal(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Read with %s %q: %v, want internal: …%s…", tt.file, tt.content, err, tt.want)
		}
	}
}

// descriptors counts the open files of this process in the directories of a cgroup.
func descriptors(tb testing.TB, paths map[string]string) int {
	tb.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	testx.Must(tb, err)
	n := 0
	for _, link := range links {
		target, _ := os.Readlink(link) // the one of Glob is closed
		for _, dir := range paths {
			if strings.HasPrefix(target, dir+"/") {
				n++
			}
		}
	}
	return n
}

func TestReader_OpensFilesOnceAndClosesThem(t *testing.T) {
	for version, hierarchies := range versions {
		t.Run(version, func(t *testing.T) {
			paths := makeCgroup(t, hierarchies(t))
			r := open(t, cgroup.New(paths))
			count := func(what string) int {
				t.Helper()
				if _, err := r.Read(); err != nil {
					t.Fatalf("Read %s: %v", what, err)
				}
				return descriptors(t, paths)
			}
			first := count("first")
			if again := count("again"); first == 0 || again != first {
				t.Errorf("%d open files after the first read, %d after the second, want some, and as many", first, again)
			}
			r.Close()
			if n := descriptors(t, paths); n != 0 {
				t.Errorf("%d open files after Close, want none", n)
			}
			if n := count("after Close"); n != first {
				t.Errorf("%d open files after a read after Close, want %d", n, first)
			}
			for _, dir := range paths {
				removeDir(t, dir)
			}
			for range 2 {
				if m, err := r.Read(); m != nil || !errdefs.IsNotFound(err) {
					t.Errorf("Read of a cgroup that is gone: %v, %v, want not found", m, err)
				}
			}
			if n := descriptors(t, paths); n != 0 {
				t.Errorf("%d open files of a cgroup that is gone, want none", n)
			}
			if _, err := stats.New(cgroup.New(paths)); !errdefs.IsNotFound(err) {
				t.Errorf("New of a cgroup that is gone: %v, want not found", err)
			}
			for range 2 { // the second time while its files are open
				for _, dir := range paths {
					removeDir(t, dir)
					testx.Must(t, os.Mkdir(dir, 0o755))
				}
				if n := count("of a cgroup that was made again"); n != first {
					t.Errorf("%d open files of a cgroup that was made again, want %d", n, first)
				}
			}
		})
	}
}

func TestReader_MayBeSharedByGoroutines(t *testing.T) {
	for version, hierarchies := range versions {
		t.Run(version, func(t *testing.T) {
			r := open(t, busy(t, hierarchies(t)))
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 50 {
						if m, err := r.Read(); err != nil || !whole(m) {
							t.Errorf("Read: %v, %v, want all metrics", m, err)
						}
					}
				})
				wg.Go(r.Close)
			}
			wg.Wait()
		})
	}
}
