// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/stdio"
)

// noChildren is for hosts that start no logging binary.
type noChildren struct{ stdio.Children }

// streamEnv serves streaming on a real socket, for a process that is a pair
// of pipes.
type streamEnv struct {
	t       *testing.T
	host    *stdio.Host
	client  *ttrpc.Client
	streams *stdio.Streams
	stdin   *os.File // what the process reads
	stdout  *os.File // what the process writes
}

func newStreamEnv(t *testing.T) *streamEnv {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	w := &streamEnv{t: t, host: stdio.NewHost("ns", noChildren{})}
	registerStreaming(server, w.host.StreamRegistry)
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.Background(), l) }() // ends with Close
	t.Cleanup(func() {
		_ = server.Close()
		<-served //nolint:errcheck // that it was closed
	})
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	w.client = ttrpc.NewClient(conn)
	t.Cleanup(func() { _ = w.client.Close() })
	return w
}

// open makes the process.
func (w *streamEnv) open() {
	w.t.Helper()
	const uri = "ttrpc+unix:///s?streaming_id=c-"
	s, err := stdio.Open(w.t.Context(), stdio.Config{Stdin: uri + "stdin", Stdout: uri + "stdout", Host: w.host},
		idmap.Owner{UID: os.Geteuid(), GID: os.Getegid()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
	stdin, stdout, _ := s.Child()
	w.streams, w.stdin, w.stdout = s, w.dup(stdin), w.dup(stdout)
	if err := errors.Join(s.Started(w.t.Context()), s.OpenStdin()); err != nil {
		w.t.Fatal(err)
	}
}

// dup keeps an end of a pipe for the test as its process would.
func (w *streamEnv) dup(f *os.File) *os.File {
	w.t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		w.t.Fatal(err)
	}
	end := os.NewFile(uintptr(fd), f.Name())
	w.t.Cleanup(func() { _ = end.Close() })
	return end
}

// call opens a stream by id and waits for the answer.
func (w *streamEnv) call(first *anypb.Any) (ttrpc.ClientStream, error) {
	w.t.Helper()
	s, err := w.client.NewStream(
		w.t.Context(), &ttrpc.StreamDesc{StreamingClient: true, StreamingServer: true}, streamingService, "Stream", nil,
	)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := s.SendMsg(first); err != nil {
		w.t.Fatal(err)
	}
	var ack anypb.Any
	if err := s.RecvMsg(&ack); err != nil {
		return nil, errgrpc.ToNative(err)
	}
	if got, want := ack.GetTypeUrl(), "google.protobuf.Empty"; got != want {
		w.t.Errorf("answered with %q, want %q", got, want)
	}
	return s, nil
}

// initOf names a stream, field 1 of StreamInit.
func initOf(id string) *anypb.Any {
	return &anypb.Any{TypeUrl: streamInit, Value: append([]byte{1<<3 | 2, byte(len(id))}, id...)}
}

func (w *streamEnv) mustCall(id string) ttrpc.ClientStream {
	w.t.Helper()
	s, err := w.call(initOf(id))
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *streamEnv) send(s ttrpc.ClientStream, m proto.Message) {
	w.t.Helper()
	a, err := typeurl.MarshalAnyToProto(m)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := s.SendMsg(a); err != nil {
		w.t.Fatal(err)
	}
}

func TestStream_OutputKeepsToTheWindow(t *testing.T) {
	w := newStreamEnv(t)
	s := w.mustCall("c-stdout") // before there is a process, as CRI does
	w.open()
	text := strings.Repeat("0123456789abcdef", 1<<16)
	go func() { defer w.stdout.Close(); _, _ = io.WriteString(w.stdout, text) }()

	var got []byte
	granted := 0
	for {
		if granted < window {
			w.send(s, &transfer.WindowUpdate{Update: window})
			granted += window
		}
		var a anypb.Any
		if err := s.RecvMsg(&a); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var d transfer.Data
		if err := a.UnmarshalTo(&d); err != nil {
			t.Fatal(err)
		}
		if granted -= len(d.Data); granted < 0 || len(d.Data) > maxData {
			t.Fatalf("sent %d bytes, %d over the window", len(d.Data), -granted)
		}
		got = append(got, d.Data...)
	}
	if string(got) != text {
		t.Errorf("got %d bytes, want the %d that were written", len(got), len(text))
	}
}

func TestStream_InputGrantsAWindow(t *testing.T) {
	w := newStreamEnv(t)
	w.open()
	s := w.mustCall("c-stdin")
	text := strings.Repeat("0123456789abcdef", 1<<16)
	read := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(w.stdin)
		read <- string(b)
	}()
	open := 0
	for rest := text; rest != ""; {
		if open == 0 {
			var a anypb.Any
			if err := s.RecvMsg(&a); err != nil {
				t.Fatal(err)
			}
			var u transfer.WindowUpdate
			if err := a.UnmarshalTo(&u); err != nil {
				t.Fatal(err)
			}
			open += int(u.Update)
		}
		n := min(open, maxData, len(rest))
		w.send(s, &transfer.Data{Data: []byte(rest[:n])})
		rest, open = rest[n:], open-n
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := w.streams.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != text {
		t.Errorf("process read %d bytes, want the %d that were sent", len(got), len(text))
	}
}

// ttrpc gives up a call of which 64 messages wait for a second.
func TestStream_ManySmallMessagesWaitForTheProcess(t *testing.T) {
	w := newStreamEnv(t)
	w.open()
	s := w.mustCall("c-stdin")
	const small = 2000
	sent := w.fill(s, small)
	for range small {
		w.send(s, &transfer.Data{Data: []byte("x")})
	}
	// The connection still answers others.
	if _, err := w.call(initOf("another")); err != nil {
		t.Errorf("another call: %v", err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	w.wantInput(sent + small)
}

// As in a fifo, what was written is there when the process reads at last.
func TestStream_InputOfAClientThatHungUpWaitsForTheProcess(t *testing.T) {
	w := newStreamEnv(t)
	w.open()
	sent := w.fill(w.mustCall("c-stdin"), 0)
	if err := w.client.Close(); err != nil {
		t.Fatal(err)
	}
	w.wantInput(sent)
}

// fill sends x until the process, which does not read, has no room for more, and leaves rest bytes of the window.
func (w *streamEnv) fill(s ttrpc.ClientStream, rest int) (sent int) {
	w.t.Helper()
	grants := make(chan int)
	go func() { // ends with the call
		defer close(grants)
		for {
			var a anypb.Any
			var u transfer.WindowUpdate
			if s.RecvMsg(&a) != nil || a.UnmarshalTo(&u) != nil {
				return
			}
			select {
			case grants <- int(u.Update):
			case <-w.t.Context().Done():
				return
			}
		}
	}()
	const chunk = 4 << 10
	for open := 0; ; {
		for open >= rest+chunk {
			w.send(s, &transfer.Data{Data: bytes.Repeat([]byte("x"), chunk)})
			sent, open = sent+chunk, open-chunk
		}
		select {
		case n, ok := <-grants:
			if !ok {
				w.t.Fatal("the call has ended")
			}
			open += n
		case <-time.After(time.Second):
			if open < rest {
				w.t.Fatalf("%d bytes of the window are left, want %d", open, rest)
			}
			return sent
		}
	}
}

// wantInput ends stdin, and has the process read all of it, which is x so many times.
func (w *streamEnv) wantInput(want int) {
	w.t.Helper()
	if err := w.streams.CloseStdin(); err != nil {
		w.t.Fatal(err)
	}
	b, err := io.ReadAll(w.stdin)
	if got := bytes.Count(b, []byte("x")); err != nil || got != want || len(b) != want {
		w.t.Errorf("process read %d bytes, %d of them x, %v, want %d", len(b), got, err, want)
	}
}

func TestStream_Refusals(t *testing.T) {
	tests := []struct {
		name  string
		first *anypb.Any
		then  proto.Message
		class error
	}{
		{
			"another message first", &anypb.Any{TypeUrl: "containerd.types.transfer.Data"}, nil,
			errdefs.ErrInvalidArgument,
		},
		{"no id", &anypb.Any{TypeUrl: streamInit}, nil, errdefs.ErrInvalidArgument},
		{
			"an id that is cut off", &anypb.Any{TypeUrl: streamInit, Value: []byte{1<<3 | 2, 5, 'a'}}, nil,
			errdefs.ErrInvalidArgument,
		},
		{
			"a field that is cut off", &anypb.Any{TypeUrl: streamInit, Value: []byte{2<<3 | 2, 5}}, nil,
			errdefs.ErrInvalidArgument,
		},
		{"a tag that is none", &anypb.Any{TypeUrl: streamInit, Value: []byte{0xff}}, nil, errdefs.ErrInvalidArgument},
		{
			"more data than the window", initOf("c-stdin"), &transfer.Data{Data: make([]byte, window+1)},
			errdefs.ErrResourceExhausted,
		},
		{"another message later", initOf("c-stdin"), &emptypb.Empty{}, errdefs.ErrInvalidArgument},
		{"a negative window", initOf("c-stdin"), &transfer.WindowUpdate{Update: -1}, errdefs.ErrInvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newStreamEnv(t)
			w.open()
			s, err := w.call(tt.first)
			if tt.then != nil && err == nil {
				w.send(s, tt.then)
				for err == nil { // a window update may come first
					err = errgrpc.ToNative(s.RecvMsg(&anypb.Any{}))
				}
			}
			if !errors.Is(err, tt.class) {
				t.Errorf("got %v, want %v", err, tt.class)
			}
		})
	}
}

// CRI hangs up once it has sent the last of an exec's stdin.
func TestStream_InputOfAClientThatHangsUpReachesTheProcess(t *testing.T) {
	for range 20 {
		w := newStreamEnv(t)
		w.open()
		s := w.mustCall("c-stdin")
		var granted anypb.Any
		if err := s.RecvMsg(&granted); err != nil {
			t.Fatal(err)
		}
		w.send(s, &transfer.Data{Data: []byte("some ")})
		w.send(s, &transfer.Data{Data: []byte("words")})
		if err := w.client.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.streams.CloseStdin(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(w.stdin); err != nil || string(b) != "some words" {
			t.Fatalf("process read %q, %v, want what was sent", b, err)
		}
	}
}
