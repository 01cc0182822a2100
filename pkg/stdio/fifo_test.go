// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestFifo_OutputWaitsForItsReader(t *testing.T) {
	const never = time.Hour
	tests := []struct {
		name   string
		reader time.Duration // when it comes
		ctx    time.Duration // when the request ends
		want   time.Duration
	}{
		{"a reader that is there", 0, never, 0},
		{"a reader that comes late", 30 * time.Millisecond, never, 30 * time.Millisecond},
		{"no reader", never, never, readerPatience},
		{"a request that ends before its reader comes", never, 50 * time.Millisecond, 50 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			path := filepath.Join(fifos(t, "stdout"), "stdout")
			start := time.Now() // before the timers below
			ctx, cancel := context.WithTimeout(t.Context(), tt.ctx)
			defer cancel()
			readers := make(chan *os.File, 1)
			come := func() {
				reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
				if err != nil {
					t.Error(err)
				}
				readers <- reader
			}
			if tt.reader == 0 {
				come()
			} else if timer := time.AfterFunc(tt.reader, come); tt.reader == never {
				defer timer.Stop()
			}
			out, err := Config{}.openFifoOutput(ctx, path)
			testx.Must(t, err)
			if took := time.Since(start); took < tt.want || took > tt.want+patience {
				t.Errorf("openFifoOutput() took %v, want %v", took, tt.want)
			}
			if tt.reader == never {
				come() // what was written before stays for it
			}
			reader := <-readers
			defer reader.Close()
			if err := out.write([]byte("hello"), func(int) {}); err != nil {
				t.Errorf("write: %v", err)
			}
			if err := out.Close(); err != nil {
				t.Error(err)
			}
			wantRest(t, reader, "hello")
		})
	}
}

// Whoever makes the fifo may make it anew while Open waits for a reader.
func TestFifo_ThatIsReplacedDoesNotHoldUpOpen(t *testing.T) {
	checkLeaks(t)
	dir := fifos(t, "stdout", "other")
	path := filepath.Join(dir, "stdout")
	opened := make(chan error, 1)
	go func() {
		s, err := Open(t.Context(), Config{Stdout: path}, ownOwner())
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	testx.Eventually(t, "Open waits for a reader", func() bool {
		buf := make([]byte, 1<<20)
		for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(stack, "[syscall") && strings.Contains(stack, "containerd/fifo.openFifo") {
				return true // in open(2), or about to be
			}
		}
		return false
	})
	testx.Must(t, os.Rename(filepath.Join(dir, "other"), path))
	within(t, "Open", func() {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	})
}
