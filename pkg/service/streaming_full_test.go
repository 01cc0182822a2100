// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types/transfer"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
)

// ttrpc's client gives up a stream of which 64 messages wait for a second, and
// the window of 128 KiB that containerd's client grants is that of bytes.
func TestStream_ManySmallPiecesOfOutputWaitForTheClient(t *testing.T) {
	tests := []struct {
		name   string
		piece  string
		pieces int
	}{
		{"much less than the window", "x", 20_000},
		{"more than the window", "a word\n", 50_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			w := newStreamEnv(t)
			s := w.mustCall("c-stdout")
			w.open()
			// Each write is a packet to the shim, which reads one at a time (pipe(2), O_DIRECT).
			if _, err := unix.FcntlInt(w.stdout.Fd(), unix.F_SETFL, unix.O_WRONLY|unix.O_DIRECT); err != nil {
				t.Fatal(err)
			}
			go func() { // ends when all is read
				defer w.stdout.Close()
				for range tt.pieces {
					_, _ = io.WriteString(w.stdout, tt.piece)
				}
			}()
			want, got := tt.pieces*len(tt.piece), 0
			for open := 0; ; { // as containerd's core/transfer/streaming, ReadByteStream
				if open < window {
					w.send(s, &transfer.WindowUpdate{Update: window})
					open += window
				}
				var a anypb.Any
				if err := s.RecvMsg(&a); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("after %d of %d bytes: %v", got, want, err)
				}
				var d transfer.Data
				if err := a.UnmarshalTo(&d); err != nil {
					t.Fatal(err)
				}
				if got == 0 {
					w.send(s, &transfer.WindowUpdate{Update: window})
					open += window
					// Stop reading for longer than ttrpc's own second. No condition tells that it has passed.
					<-time.After(1500 * time.Millisecond)
				}
				open -= len(d.Data)
				got += len(d.Data)
			}
			if got != want {
				t.Errorf("got %d bytes, want the %d that were written", got, want)
			}
		})
	}
}
