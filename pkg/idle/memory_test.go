// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestTrim_UnmapsTheCodeAndItGoesOn(t *testing.T) {
	m := OwnMemory()
	if len(m.code) == 0 {
		t.Fatal("no read-only segments found")
	}
	touch(m)
	before := mapped(t)
	m.Trim()
	// What it takes to find this out comes back at once, with up to a whole folio of the page cache around it.
	if after := mapped(t); after >= before {
		t.Errorf("KiB mapped of the program's file = %d, %d before, want less", after, before)
	}
	// Relocated data, which lies next to it, has kept its values.
	if got, want := fmt.Sprintf("%v %s", time.Second, strings.ToUpper("ok")), "1s OK"; got != want {
		t.Errorf("after that Sprintf = %q, want %q", got, want)
	}
}

func TestTrim_CollectsOnceUnlessAnOperatorSaysWhen(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // only Trim collects
	for _, tt := range []struct {
		gogc      string
		collected bool
	}{{"", true}, {"100", false}} {
		debug.SetGCPercent(-1)
		t.Setenv("GOGC", tt.gogc)
		m := &Memory{}
		if tt.gogc != "" {
			m.collected = collections() // as in a process that never did
		}
		before := collections()
		m.Trim()
		if got := collections() > before; got != tt.collected {
			t.Errorf("with GOGC=%q Trim collected: %t, want %t", tt.gogc, got, tt.collected)
		}
		m.Use()
		if got, want := debug.SetGCPercent(-1), map[bool]int{true: usedGC, false: -1}[tt.gogc == ""]; got != want {
			t.Errorf("with GOGC=%q it is %d after a use, want %d", tt.gogc, got, want)
		}
		before = collections()
		if m.Trim(); collections() > before {
			t.Errorf("with GOGC=%q Trim collected again, want nothing: there is no new garbage", tt.gogc)
		}
	}
}

// touch reads every page of the program.
func touch(m *Memory) {
	f, err := os.Open("/proc/self/mem")
	if err != nil {
		panic(err)
	}
	defer func() { _ = f.Close() }() // opened for reading only
	buf := make([]byte, 1<<20)
	for _, s := range m.code {
		for at := uintptr(0); at < s[1]; at += uintptr(len(buf)) {
			_, _ = f.ReadAt(buf[:min(uintptr(len(buf)), s[1]-at)], int64(s[0]+at)) // what is touched is touched
		}
	}
}

// mapped sums up what is resident of this program's file, in KiB.
func mapped(t *testing.T) (kib int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	testx.Must(t, err)
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
