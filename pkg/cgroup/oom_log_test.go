// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/internal/testx"
)

// rising is a source that counts a kill each time it is asked.
type rising struct {
	oomSource
	n uint64
}

func (s *rising) kills() (uint64, error) { s.n++; return s.n, nil }
func (s *rising) close()                 {}

// A container can run out of memory in a loop, and there is one log for all.
func TestOOMWatch_LogsManyKillsInFewLines(t *testing.T) {
	var text bytes.Buffer
	log.L.Logger.SetOutput(&text)
	defer log.L.Logger.SetOutput(os.Stderr)
	reports := 0
	synctest.Test(t, func(*testing.T) {
		w := &OOMWatch{cgroup: "c1", notify: func() { reports++ }, source: &rising{}}
		for range 999 {
			w.Check()
			time.Sleep(10 * time.Millisecond) // of the bubble
		}
		w.Stop()
	})
	kills := 0
	lines := regexp.MustCompile(`kills=(\d+)`).FindAllSubmatch(text.Bytes(), -1)
	for _, line := range lines {
		n, err := strconv.Atoi(string(line[1]))
		testx.Must(t, err)
		kills += n
	}
	if len(lines) != 2 || kills != 1000 || reports != 1000 {
		t.Errorf("%d reports, and %d lines of %d kills, want 1000, and 2 of 1000:\n%s", reports, len(lines), kills, &text)
	}
}
