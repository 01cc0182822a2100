// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package fakecontainerd plays containerd for a shim, without containerd: it makes bundles, starts the shim binary as
// each generation of containerd does, records the events that the shim forwards, and calls the Task service in either
// version. Tests can do with it what containerd's client would refuse: wrong states, bad bundles, a sink for events
// that goes away at the worst time.
//
// A Fake owns the goroutine that serves the sink; SinkDown and the end of the test join it.
package fakecontainerd

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	events "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/integration/eventlog"
	"sandbox.internal/shim/integration/harness"
)

// testLimit ends every call of a test that hangs.
const testLimit = time.Minute

// Fake is a containerd for one test: a namespace, directories of its own, and a sink for events.
type Fake struct {
	testing.TB
	Ctx       context.Context //nolint:containedctx // with the namespace, for one test: it ends after testLimit
	Env       harness.Env
	Namespace string
	Dir       string // everything is below
	Address   string // of a gRPC socket that nobody serves: shims only pass it on
	Sockets   string // where shims are asked to make their sockets
	Rootfs    string // of all containers, mounted into each bundle
	Events    *eventlog.Log
	Faults    *harness.Injection // in the shim's commands from when it is set; nil for none

	sink   *sink
	lastMu sync.Mutex
	last   *types.Envelope // guarded by lastMu: the last event; the queue of a shim sends one at a time
}

// New prepares a fake containerd. When the test ends, everything that it left behind fails it.
func New(tb testing.TB, env harness.Env, rootfs string) *Fake {
	tb.Helper()
	dir, err := os.MkdirTemp("", harness.NamespacePrefix)
	if err != nil {
		tb.Fatal(err)
	}
	f := &Fake{
		TB: tb, Env: env, Namespace: filepath.Base(dir), Dir: dir, Rootfs: rootfs, Events: eventlog.New(),
		Address: filepath.Join(dir, "c.sock"), Sockets: filepath.Join(dir, "s"),
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), f.Namespace), testLimit)
	f.Ctx = ctx
	tb.Cleanup(cancel)
	tb.Cleanup(f.finish)
	f.SinkUp()
	return f
}

// finish looks for leaks and removes the directory.
func (f *Fake) finish() {
	f.Scope().Check(f.TB)
	f.SinkDown()
	if f.Failed() {
		f.Logf("events: %s", f.Events)
	}
	if err := os.RemoveAll(f.Dir); err != nil {
		f.Error(err)
	}
}

// Scope is what the test may have made outside of its bundles.
func (f *Fake) Scope() harness.Scope {
	s := harness.Scope{Namespace: f.Namespace, MountsIn: f.Dir}
	if harness.Runtime() == harness.Ours { // the runc shim leaves its socket when it is killed
		s.Dirs = []string{f.Sockets}
	}
	return s
}

// Must ends the test when err is not nil.
func (f *Fake) Must(err error, what string) {
	f.Helper()
	if err != nil {
		f.Fatalf("%s: %v", what, err)
	}
}

// Bundle is the directory of one container, as containerd makes it.
type Bundle struct {
	ID   string
	Path string
	// Mounts are what Create is asked to mount on rootfs.
	Mounts []*types.Mount

	log int // its fifo, open for reading
}

// Bundle makes a bundle whose container runs args. A change of the spec may make it anything, wrong ones included.
func (f *Fake) Bundle(id string, change func(*specs.Spec), args ...string) *Bundle {
	f.Helper()
	spec, err := oci.GenerateSpec(f.Ctx, nil, &containers.Container{ID: id},
		oci.WithRootFSPath("rootfs"), oci.WithDefaultPathEnv, oci.WithProcessArgs(args...))
	f.Must(err, "spec")
	if change != nil {
		change(spec)
	}
	data, err := json.Marshal(spec)
	f.Must(err, "spec")
	return f.BundleWith(id, data)
}

// BundleWith makes a bundle with these bytes as config.json; without the file when they are nil. A bundle of the same
// id that is still there gets the new config.json.
func (f *Fake) BundleWith(id string, config []byte) *Bundle {
	f.Helper()
	b := &Bundle{
		ID:     id,
		Path:   filepath.Join(f.Dir, "io.containerd.runtime.v2.task", f.Namespace, filepath.Base(id)),
		Mounts: []*types.Mount{{Type: "bind", Source: f.Rootfs, Options: []string{"rbind", "rw"}}},
	}
	f.Must(os.MkdirAll(filepath.Join(b.Path, "rootfs"), 0o711), "bundle")
	if config != nil {
		f.Must(os.WriteFile(filepath.Join(b.Path, "config.json"), config, 0o600), "bundle")
	}
	f.holdLog(b)
	return b
}

// holdLog makes the fifo for the shim's log and holds it open as containerd does, but reads it only to say why a test
// failed: no shim may wait for a reader.
func (f *Fake) holdLog(b *Bundle) {
	f.Helper()
	name := filepath.Join(b.Path, "log")
	if err := unix.Mkfifo(name, 0o700); !errors.Is(err, unix.EEXIST) {
		f.Must(err, "log fifo")
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	f.Must(err, "log fifo")
	b.log = fd
	f.Cleanup(func() {
		if text := b.ReadLog(); text != "" && f.Failed() {
			f.Logf("log of shim %s:\n%s", b.ID, text)
		}
		_ = unix.Close(fd)
	})
}

// ReadLog returns what the shim, or another that was started for the bundle, has written since the last call, as far as
// the fifo has room for it.
func (b *Bundle) ReadLog() string {
	text := make([]byte, 1<<16)
	n, _ := unix.Read(b.log, text) // EAGAIN: nothing
	return string(text[:max(n, 0)])
}

// WantEvents waits until all events so far are exactly want. Other shims may send them in another order, or not at all
// when they are shut down, so of those nothing is asked.
func (f *Fake) WantEvents(containerID, want string) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Ctx, 10*time.Second)
	defer cancel()
	if harness.Runtime() != harness.Ours {
		return
	}
	if err := f.Events.Wait(ctx, containerID, func(text string) bool { return text == want }); err != nil {
		f.Errorf("%v\nwant %q", err, want)
	}
}

// WantError checks that err is of a class (any when it is nil) and that its text has all the words.
func (f *Fake) WantError(err, class error, words ...string) {
	f.Helper()
	if err == nil {
		f.Errorf("error = nil, want %v that names %q", class, words)
		return
	}
	if class != nil && !errors.Is(err, class) {
		f.Errorf("error = %v, want class %q", err, class)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			f.Errorf("error = %q, want %q in it", err, word)
		}
	}
}

// sink is the part of containerd that shims call: they forward events to it.
type sink struct {
	fake   *Fake
	server *ttrpc.Server
	served chan struct{} // closed when the goroutine that serves has ended
}

// TTRPCAddress is the address of the sink.
func (f *Fake) TTRPCAddress() string { return filepath.Join(f.Dir, "c.sock.ttrpc") }

// SinkUp serves the sink, after New or SinkDown.
func (f *Fake) SinkUp() {
	f.Helper()
	server, err := ttrpc.NewServer()
	f.Must(err, "sink")
	s := &sink{fake: f, server: server, served: make(chan struct{})}
	events.RegisterTTRPCEventsService(server, s)
	listener, err := net.Listen("unix", f.TTRPCAddress())
	f.Must(err, "sink")
	go s.serve(listener)
	f.sink = s
}

// SinkDown ends the sink as if containerd were killed between two events: connections break, the address refuses. An
// event that is being answered still is, because one whose answer is lost is sent again.
func (f *Fake) SinkDown() {
	f.Helper()
	if f.sink == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := f.sink.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = f.sink.server.Close() // a connection that stays open
	}
	<-f.sink.served
	f.sink = nil
	if err := errors.Join(err, os.RemoveAll(f.TTRPCAddress())); err != nil {
		f.Errorf("sink: %v", err)
	}
}

// serve is the goroutine of the sink. It ends when the server is closed.
func (s *sink) serve(l net.Listener) {
	defer close(s.served)
	if err := s.server.Serve(context.Background(), l); err != nil && !errors.Is(err, ttrpc.ErrServerClosed) {
		s.fake.Errorf("sink: %v", err)
	}
}

// Forward records an event.
func (s *sink) Forward(_ context.Context, r *events.ForwardRequest) (*emptypb.Empty, error) {
	e := r.GetEnvelope()
	event, err := typeurl.UnmarshalAny(e.GetEvent())
	if err != nil {
		s.fake.Errorf("event %s: %v", e.GetTopic(), err)
		return nil, err
	}
	if e.GetTimestamp().AsTime().IsZero() || e.GetNamespace() != s.fake.Namespace {
		s.fake.Errorf("event %s: timestamp %v, namespace %q, want a time and %q", e.GetTopic(), e.GetTimestamp(),
			e.GetNamespace(), s.fake.Namespace)
	}
	s.fake.lastMu.Lock()
	defer s.fake.lastMu.Unlock()
	if proto.Equal(e, s.fake.last) {
		return &emptypb.Empty{}, nil // sent again, since SinkDown came before the answer
	}
	s.fake.last = e
	s.fake.Events.Add(eventlog.Entry{Namespace: e.GetNamespace(), Topic: e.GetTopic(), Event: event})
	return &emptypb.Empty{}, nil
}
