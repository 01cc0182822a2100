// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"os"
	"path/filepath"
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
			if _, err := out.Write([]byte("hello")); err != nil {
				t.Errorf("write: %v", err)
			}
			if err := out.Close(); err != nil {
				t.Error(err)
			}
			wantRest(t, reader, "hello")
		})
	}
}
