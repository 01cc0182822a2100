// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/stats"
)

// seed gives the fuzzer the kernel's text of a file, on each version.
func seed(f *testing.F, file string) {
	f.Helper()
	for _, pattern := range []string{"testdata/v1/*/", "testdata/v2/"} {
		names, err := filepath.Glob(pattern + file)
		testx.Must(f, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			testx.Must(f, err)
			f.Add(text)
		}
	}
}

// refused checks that text which is not understood is refused with the class that says whose fault it is. A message may
// be half filled then.
func refused(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && !errdefs.IsInternal(err) {
		t.Errorf("error %v, want internal", err)
	}
	return err != nil
}

// atMost checks that no more is made of a text than it has lines or words.
func atMost(t *testing.T, entries, limit int) {
	t.Helper()
	if entries > limit {
		t.Errorf("%d entries, want at most %d", entries, limit)
	}
}

// FuzzKeyed parses "key value" lines: what a message says of a text it says of the same with a key of tomorrow.
func FuzzKeyed(f *testing.F) {
	for _, file := range []string{
		"memory.stat", "memory.events", "memory.oom_control", "cpu.stat", "cpuacct.stat", "hugetlb.2MB.events",
	} {
		seed(f, file)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, today := range []any{
			&v1.MemoryStat{}, &v2.MemoryStat{}, &v2.MemoryEvents{}, &v1.MemoryOomControl{}, &v1.Throttle{}, &v2.CPUStat{},
			&v1.CPUUsage{}, &v2.HugeTlbStat{},
		} {
			tomorrow := reflect.New(reflect.TypeOf(today).Elem()).Interface()
			if refused(t, stats.ParseKeyed(text, today)) {
				continue
			}
			err := stats.ParseKeyed(append([]byte("key_of_tomorrow 1 x\n"), text...), tomorrow)
			if err != nil || !reflect.DeepEqual(today, tomorrow) {
				t.Errorf("%q with one more key: %v, %v, want %v", text, tomorrow, err, today)
			}
		}
	})
}

func FuzzNumber(f *testing.F) {
	seed(f, "memory.*max*")
	f.Fuzz(func(t *testing.T, text []byte) {
		const unlimited = 12345
		n, err := stats.Number(text, unlimited)
		said := bytes.Contains(text, []byte("max")) || bytes.Contains(text, []byte("12345"))
		if !refused(t, err) && n == unlimited && !said {
			t.Errorf("Number(%q) is unlimited", text)
		}
	})
}

func FuzzBlkio(f *testing.F) {
	seed(f, "blkio.*")
	f.Add([]byte("8:0 4\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := stats.ParseBlkio(text)
		refused(t, err)
		atMost(t, len(entries), bytes.Count(text, []byte("\n"))+1)
	})
}

func FuzzIOStat(f *testing.F) {
	seed(f, "io.stat")
	f.Add([]byte("8:0 8:16 rbytes=1 wbytes=2 cost.usage=3\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := stats.ParseIOStat(text)
		refused(t, err)
		atMost(t, len(entries), bytes.Count(text, []byte("\n"))+1)
	})
}

func FuzzPressure(f *testing.F) {
	seed(f, "*.pressure")
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := stats.ParsePressure(text)
		if refused(t, err) {
			return
		}
		for _, data := range []*v2.PSIData{p.Some, p.Full} {
			if data == nil {
				continue
			}
			for _, share := range []float64{data.Avg10, data.Avg60, data.Avg300} {
				if math.IsNaN(share) || share < 0 || share > 100 {
					t.Errorf("share of time %v of %q, want one from 0 to 100", share, text)
				}
			}
		}
	})
}
