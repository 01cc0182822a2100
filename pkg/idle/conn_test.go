// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/pkg/internal/testx"
)

// frame is a message of ttrpc.
func frame(stream uint32, kind byte, size int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(size))
	b = append(binary.BigEndian.AppendUint32(b, stream), kind, 0)
	return append(b, bytes.Repeat([]byte{byte(stream)}, size)...)
}

func TestFollower_FindsMessagesInAnyParts(t *testing.T) {
	sizes := []int{0, 1, 100, 5000, longest + 1, 3}
	var all []byte
	for i, size := range sizes {
		all = append(all, frame(uint32(2*i+1), typeRequest, size)...)
	}
	for _, keep := range []bool{true, false} {
		for range 20 {
			var f follower
			var got []message
			for rest := all; len(rest) > 0; {
				n := min(1+rand.N(1<<rand.N(23)), len(rest)) //nolint:gosec // any part will do
				f.follow(rest[:n], keep, func(m message) { got = append(got, m) })
				rest = rest[n:]
			}
			if len(got) != len(sizes) || len(f.part) > 0 || f.left > 0 {
				t.Fatalf("keep %t: %d messages, %d bytes and %d more left, want %d and nothing", keep, len(got), len(f.part), f.left, len(sizes))
			}
			for i, m := range got {
				whole := keep && sizes[i] <= longest
				if m.stream() != uint32(2*i+1) || m.size() != headerSize+sizes[i] || (len(m) == m.size()) != whole && sizes[i] > 0 {
					t.Errorf("keep %t: message %d is of stream %d, has %d bytes of %d", keep, i, m.stream(), len(m), m.size())
				}
			}
		}
	}
}

// frozenServer is a server whose method Wait waits until end is closed, as Slow does, and whose Quick does not.
func frozenServer(t *testing.T) (tr *Tracker, l *net.UnixListener, client *ttrpc.Client, end chan struct{}) {
	t.Helper()
	tr, end = newTracker(Config{}), make(chan struct{})
	t.Cleanup(tr.Stop)
	intercept := func(ctx context.Context, u ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, call ttrpc.Method) (any, error) {
		return call(ctx, u)
	}
	server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(tr), ttrpc.WithUnaryServerInterceptor(tr.Intercept(intercept)))
	testx.Must(t, err)
	wait := func(_ context.Context, unmarshal func(any) error) (any, error) {
		err := unmarshal(&emptypb.Empty{})
		<-end
		return &emptypb.Empty{}, err
	}
	server.RegisterService("s", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Wait": wait, "Slow": wait, "Quick": func(_ context.Context, unmarshal func(any) error) (any, error) {
			return &emptypb.Empty{}, unmarshal(&emptypb.Empty{})
		},
	}})
	path := filepath.Join(t.TempDir(), "s")
	l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	testx.Must(t, err)
	go func() { _ = server.Serve(context.Background(), tr.Listen(l)) }() // ends with the server
	t.Cleanup(func() { _ = server.Close() })
	conn, err := net.Dial("unix", path)
	testx.Must(t, err)
	client = ttrpc.NewClient(conn)
	t.Cleanup(func() { _ = client.Close() })
	return tr, l, client, end
}

func call(t *testing.T, client *ttrpc.Client, method string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- client.Call(t.Context(), "s", method, &emptypb.Empty{}, &emptypb.Empty{}) }()
	return done
}

// pending waits until the tracker has so many requests without an answer.
func pending(t *testing.T, tr *Tracker, want int) {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := 0
	tr.awaitLocked(ctx, func() bool {
		n = 0
		for c := range tr.conns {
			n += len(c.pending)
		}
		return n == want
	})
	if n != want {
		t.Fatalf("%d requests have no answer, want %d", n, want)
	}
}

func TestFreeze_WaitsForCallsButNotForWaits(t *testing.T) {
	tr, l, client, end := frozenServer(t)
	testx.Must(t, <-call(t, client, "Quick"))
	waits := call(t, client, "Wait")
	pending(t, tr, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	testx.Must(t, tr.AwaitIdle(ctx, ""))
	testx.Must(t, tr.Freeze(ctx, l, ""))
	quick := call(t, client, "Quick")
	other, err := net.Dial("unix", l.Addr().String())
	testx.Must(t, err)
	defer other.Close()
	select {
	case err := <-quick:
		t.Errorf("a call was answered in the freeze: %v", err)
	case <-time.After(50 * time.Millisecond): // it does not come
	}
	if got := tr.Clients(); got != 1 {
		t.Errorf("%d clients, want one: the other waits", got)
	}
	tr.Thaw(l)
	testx.Must(t, <-quick)
	testx.Must(t, <-call(t, ttrpc.NewClient(other), "Quick"))

	slow := call(t, client, "Slow")
	pending(t, tr, 2)
	short, cancelShort := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancelShort()
	for what, err := range map[string]error{"AwaitIdle": tr.AwaitIdle(short, ""), "Freeze": tr.Freeze(short, l, "")} {
		if !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), "under way: Slow") {
			t.Errorf("%s = %v, want that Slow is under way", what, err)
		}
	}
	testx.Must(t, tr.Freeze(ctx, l, "Slow")) // as that which asks
	tr.Thaw(l)
	testx.Must(t, <-call(t, client, "Quick"))
	close(end)
	testx.Must(t, <-slow)
	testx.Must(t, <-waits)
}
