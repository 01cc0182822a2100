// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]*Limits{
		"off":                          nil,
		"on":                           {},
		"wall-time=2s,cpu-time=1500ms": {WallTime: 2 * time.Second, CPUTime: 1500 * time.Millisecond},
		"pids=2,output=100k,pids=1":    {Pids: 1, Output: 100e3},
		"wall-time=1m, memory=1Mi":     {WallTime: time.Minute, Memory: 1 << 20},
		"wall-time=24h,memory=1024Ti":  {WallTime: 24 * time.Hour, Memory: 1 << 50},
	} {
		got, err := Parse("key", text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Parse(%q): %v\n%s", text, err, diff)
		}
	}
}

func TestParse_Refuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                       `key "": must be off, on, or a list of name=value`,
		"wall=1s":                "names are wall-time, cpu-time,",
		"memory":                 `key "memory": must be off`,
		"memory=1Mi,":            `key "": must be off`,
		"memory=1Mi,pids":        `key "pids": must be off`,
		"wall-time=2":            `key: wall-time "2": must be a time`,
		"wall-time=999us":        "at least 1ms",
		"cpu-time=24h1s":         "at most 24h",
		"memory=1023Ki":          "at least 1Mi",
		"memory=64mb":            `"64mb"`,
		"memory=9999999999999Ti": "at most 1024Ti",
		"output=0":               "at least 1",
		"swap=1Mi":               `key "swap=1Mi": must be off`,
	} {
		_, err := Parse("key", text)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, want %q", text, err, want)
		}
	}
}

func TestFromEnv(t *testing.T) {
	defaults := &Limits{WallTime: 10 * time.Second, Memory: 64 << 20, Output: 100}
	env := []string{"A=b", "SANDBOX_LIMIT_WALL_TIME=5s", "PATH=/bin", "SANDBOX_LIMIT_PIDS=3", "SANDBOX_LIMIT_PIDS=4"}
	got, rest, err := defaults.FromEnv(env)
	want := &Limits{WallTime: 5 * time.Second, Memory: 64 << 20, Output: 100, Pids: 4}
	if diff := cmp.Diff(want, got); err != nil || diff != "" || !slices.Equal(rest, []string{"A=b", "PATH=/bin"}) {
		t.Errorf("FromEnv: %q, %v\n%s", rest, err, diff)
	}
	if got, rest, err := (*Limits)(nil).FromEnv([]string{"A=b"}); got != nil || len(rest) != 1 || err != nil {
		t.Errorf("FromEnv without limits = %v, %v, %v", got, rest, err)
	}
	if got, _, err := defaults.FromEnv([]string{"A=b"}); got != defaults || err != nil {
		t.Errorf("FromEnv without variables = %v, %v, want the limits themselves", got, err)
	}
}

// A run that uses all processors all the time is over its limit by no more than the tolerance when it is seen, and is
// not looked at before it can have used it.
func TestNextLook(t *testing.T) {
	for _, limit := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 2 * time.Second, time.Hour} {
		for _, processors := range []int{1, 2, 8} {
			l := &Limits{CPUTime: limit}
			if first := l.NextLook(0, 0, processors); first < limit/time.Duration(processors) {
				t.Errorf("limit %v on %d: first look after %v", limit, processors, first)
			}
			for _, busy := range []int{1, processors} {
				var used time.Duration
				looks := 0
				for next := l.NextLook(0, 0, processors); next > 0; next = l.NextLook(used, 0, processors) {
					used += next * time.Duration(busy)
					looks++
				}
				if over := used - limit; over > max(10*time.Millisecond, limit/100) || busy == processors && looks > 1 || looks > 200 {
					t.Errorf("limit %v, %d of %d busy: over by %v after %d looks", limit, busy, processors, over, looks)
				}
			}
		}
	}
	one := &Limits{CPUTime: time.Second, Pids: 1}
	if got := one.NextLook(0, 0, 64); got < time.Second {
		t.Errorf("a single process is looked at after %v", got)
	}
}

// One that uses nothing, just before its limit, does not keep the shim busy.
func TestNextLook_OfAnIdleRun(t *testing.T) {
	l := &Limits{CPUTime: time.Second}
	looks := 0
	for idle := time.Duration(0); idle < time.Hour; looks++ {
		idle += l.NextLook(l.CPUTime-1, idle, 2)
	}
	if most := int(time.Hour/mostIdleWait) + 20; looks > most {
		t.Errorf("%d looks in an hour, want %d at most", looks, most)
	}
}
