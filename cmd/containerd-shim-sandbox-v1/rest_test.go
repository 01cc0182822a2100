// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
)

func TestTheDaemonRestsOnceAfterTheLastCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var rests []time.Duration
		r := newRester(func() { rests = append(rests, time.Since(begin)) })
		defer r.stop()
		call := r.intercept(func(context.Context, ttrpc.Unmarshaler, *ttrpc.UnaryServerInfo, ttrpc.Method) (any, error) {
			time.Sleep(time.Second)
			return "answer", nil
		})
		// Three calls with a gap that is shorter than the delay, and a long time after that; then the same again.
		var want []time.Duration
		for _, delay := range []time.Duration{firstRest, laterRest} {
			for range 3 {
				time.Sleep(delay / 2)
				if got, err := call(t.Context(), nil, &ttrpc.UnaryServerInfo{FullMethod: "/containerd.task.v3.Task/Exec"}, nil); got != "answer" || err != nil {
					t.Errorf("call = %v, %v, want the answer", got, err)
				}
			}
			want = append(want, time.Since(begin)+delay)
			for range 1000 {
				_, _ = call(t.Context(), nil, &ttrpc.UnaryServerInfo{FullMethod: "/containerd.task.v3.Task/Stats"}, nil) // a poll
			}
			time.Sleep(time.Hour)
		}
		synctest.Wait()
		if diff := cmp.Diff(want, rests); diff != "" {
			t.Errorf("rests after (-want +got):\n%s", diff)
		}
	})
}

func TestGivingBackUnmapsTheCodeAndItGoesOn(t *testing.T) {
	m := ownMemory()
	if len(m.code) == 0 {
		t.Fatal("no read-only segments found")
	}
	touch(m)
	before := mapped(t)
	m.giveBack()
	// What it takes to find this out comes back at once, and brings its neighbours along.
	if after := mapped(t); after > before*3/4 {
		t.Errorf("KiB mapped of the program's file = %d, %d before, want a quarter less", after, before)
	}
	// Relocated data, which lies next to it, has kept its values.
	if got, want := fmt.Sprintf("%v %s", time.Second, strings.ToUpper("ok")), "1s OK"; got != want {
		t.Errorf("after that Sprintf = %q, want %q", got, want)
	}
}

// touch reads every page of the program.
func touch(m *memory) {
	f, err := os.Open("/proc/self/mem")
	if err != nil {
		panic(err)
	}
	defer func() { _ = f.Close() }() // opened for reading only
	buf := make([]byte, 1<<20)
	for _, s := range m.code {
		for at := uintptr(0); at < s.size; at += uintptr(len(buf)) {
			_, _ = f.ReadAt(buf[:min(uintptr(len(buf)), s.size-at)], int64(s.start+at)) // what is touched is touched
		}
	}
}

// mapped sums up what is resident of this program's file, in KiB.
func mapped(t *testing.T) (kib int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // opened for reading only
	own, name := false, filepath.Base(os.Args[0])
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if !strings.HasSuffix(fields[0], ":") {
			own = filepath.Base(fields[len(fields)-1]) == name
			continue
		}
		var n int
		if own && fields[0] == "Rss:" {
			if _, err := fmt.Sscan(fields[1], &n); err != nil {
				t.Fatal(err)
			}
			kib += n
		}
	}
	return kib
}
