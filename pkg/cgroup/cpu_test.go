// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// withQuota makes a directory of v1 with a quota and a period.
func withQuota(t *testing.T, dir, quota, period string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{quotaFile: quota, periodFile: period} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFit_IsNoMoreThanWhatIsAbove(t *testing.T) {
	for name, tt := range map[string]struct {
		pod, parent Bandwidth
		asked, want Bandwidth
	}{
		"no limit above":            {Bandwidth{-1, 100000}, Bandwidth{-1, 100000}, Bandwidth{50000, 100000}, Bandwidth{50000, 100000}},
		"more above":                {Bandwidth{60000, 100000}, Bandwidth{-1, 100000}, Bandwidth{50000, 100000}, Bandwidth{50000, 100000}},
		"less above":                {Bandwidth{20000, 100000}, Bandwidth{-1, 100000}, Bandwidth{50000, 100000}, Bandwidth{20000, 100000}},
		"less further above":        {Bandwidth{20000, 100000}, Bandwidth{1000, 10000}, Bandwidth{50000, 100000}, Bandwidth{10000, 100000}},
		"in another period":         {Bandwidth{10000, 30000}, Bandwidth{-1, 100000}, Bandwidth{50000, 100000}, Bandwidth{33333, 100000}},
		"too little for the period": {Bandwidth{5000, 1000000}, Bandwidth{-1, 100000}, Bandwidth{50000, 100000}, Bandwidth{5000, 1000000}},
		"nothing is asked":          {Bandwidth{20000, 100000}, Bandwidth{-1, 100000}, Bandwidth{-1, 100000}, Bandwidth{20000, 100000}},
	} {
		top := t.TempDir()
		text := func(b Bandwidth) (string, string) {
			return strconv.FormatInt(b.Quota, 10), strconv.FormatUint(b.Period, 10)
		}
		quota, period := text(tt.parent)
		parent := withQuota(t, filepath.Join(top, "parent"), quota, period)
		quota, period = text(tt.pod)
		pod := withQuota(t, filepath.Join(parent, "pod"), quota, period)
		c := New(map[string]string{"cpu": filepath.Join(pod, "not made yet"), "memory": top})
		if got := c.Fit(tt.asked); got != tt.want {
			t.Errorf("%s: Fit(%v) = %v, want %v", name, tt.asked, got, tt.want)
		}
	}
}

func TestFitChildren_LowersThoseWithMore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `with\x2dslash`) // as systemd names units
	more := withQuota(t, filepath.Join(dir, "exec-1"), "50000", "100000")
	less := withQuota(t, filepath.Join(dir, "exec-2"), "10000", "100000")
	none := withQuota(t, filepath.Join(dir, "exec-3"), "-1", "100000")
	short := withQuota(t, filepath.Join(dir, "exec-4"), "2000", "3000")
	other := withQuota(t, filepath.Join(dir, "of the container"), "50000", "100000")
	if err := os.Mkdir(filepath.Join(dir, "exec-5"), 0o755); err != nil { // it has just ended
		t.Fatal(err)
	}
	c := New(map[string]string{"cpu": dir, "memory": dir})
	before, err := c.FitChildren("exec-*", Bandwidth{20000, 100000})
	if err != nil {
		t.Fatal(err)
	}
	if none, err := c.FitChildren("exec-*", Bandwidth{-1, 100000}); err != nil || len(none) > 0 { // more than any
		t.Errorf("without a limit: %v, %v, want that nothing is changed", none, err)
	}
	for dir, want := range map[string]Bandwidth{
		more: {20000, 100000}, less: {10000, 100000}, none: {-1, 100000}, short: {200000, 1000000}, other: {50000, 100000},
	} {
		if got, err := readBandwidth(dir); err != nil || got != want {
			t.Errorf("%s has %v, %v, want %v", filepath.Base(dir), got, err, want)
		}
	}
	if err := os.RemoveAll(short); err != nil { // this one ends
		t.Fatal(err)
	}
	if err := before.RestoreLeft(); err != nil {
		t.Error(err)
	}
	if got, err := readBandwidth(more); err != nil || got != (Bandwidth{50000, 100000}) {
		t.Errorf("restored to %v, %v, want what it had", got, err)
	}
}
