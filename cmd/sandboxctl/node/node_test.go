// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/protofield"
)

// fakeContainerd has containers, and no Sandbox API.
type fakeContainerd struct {
	containersapi.UnimplementedContainersServer
	ids []string
}

func (f *fakeContainerd) ListStream(
	_ *containersapi.ListContainersRequest, to containersapi.Containers_ListStreamServer,
) error {
	for _, id := range f.ids {
		c := &containersapi.Container{ID: id}
		if err := to.Send(&containersapi.ListContainerMessage{Container: c}); err != nil {
			return err
		}
	}
	return nil
}

// fakeShim says that it runs c1, of which it counts execs.
type fakeShim struct {
	started uint64
	known   int
}

func encoded(fields ...any) ttrpc.Method {
	return func(context.Context, func(any) error) (any, error) {
		data, err := protofield.Encode(fields...)
		var m emptypb.Empty
		m.ProtoReflect().SetUnknown(data)
		return &m, err
	}
}

func (f *fakeShim) serve(t *testing.T, socket string) {
	t.Helper()
	text, err := json.Marshal(inspect.Answer{
		Shim:       inspect.Shim{Pid: os.Getpid(), Namespace: "ns"},
		Containers: []inspect.ContainerInfo{{ID: "c1", State: string(Running), Execs: inspect.Execs{Started: f.started, Known: f.known}}},
	})
	must(t, err)
	server, err := ttrpc.NewServer()
	must(t, err)
	server.RegisterService("io.containerd.sandbox.v1.Inspect", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Inspect": encoded(text),
	}})
	l, err := net.Listen("unix", socket)
	must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(context.Background(), l) }() // ends with the server
	t.Cleanup(func() { _ = server.Close(); <-done })
}

func newNode(t *testing.T) (*Node, *fakeContainerd) {
	t.Helper()
	state, err := os.MkdirTemp("", "s") // a socket's path is limited to 107 bytes
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(state)) })
	f := &fakeContainerd{}
	server := grpc.NewServer()
	containersapi.RegisterContainersServer(server, f)
	socket := filepath.Join(state, "containerd")
	l, err := net.Listen("unix", socket)
	must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }() // ends with the server
	t.Cleanup(func() { server.Stop(); <-done })
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	n := &Node{config: Config{Address: socket, State: state, Namespace: "ns", Timeout: 10 * time.Second}, conn: conn}
	t.Cleanup(func() { must(t, n.Close()) })
	return n, f
}

// bundle makes that of c1, with a shim.
func bundle(t *testing.T, n *Node, shim *fakeShim) {
	t.Helper()
	socket := filepath.Join(n.config.State, "shim")
	dir := filepath.Join(n.config.State, "io.containerd.runtime.v2.task/ns/c1")
	write(t, dir, map[string]string{"address": "unix://" + socket})
	shim.serve(t, socket)
}

func snapshot(t *testing.T, n *Node) *Snapshot {
	t.Helper()
	s, err := n.Snapshot(t.Context())
	must(t, err)
	return s
}

func TestSnapshot_HasWhatTheShimKnows(t *testing.T) {
	n, containerd := newNode(t)
	bundle(t, n, &fakeShim{started: 2000, known: 1500})
	containerd.ids = []string{"c1", "other"}
	s := snapshot(t, n)
	if c := s.Container("ns", "c1"); c.State != Running || !c.ExecsKnown || c.ExecsStarted != 2000 || c.Execs != 1500 {
		t.Errorf("container %+v, want 1500 execs of 2000", c)
	}
	if c := s.Container("ns", "other"); c.State != NoTask {
		t.Errorf("container without a bundle: %+v, want no task", c)
	}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Snapshot(cut); err == nil {
		t.Error("a snapshot that is cut off succeeded")
	}
}

// Shims that hang are not in the way of one that answers, however many they are.
func TestSnapshot_ShimsThatHangDelayNoOther(t *testing.T) {
	n, containerd := newNode(t)
	bundle(t, n, &fakeShim{started: 1})
	hung := filepath.Join(n.config.State, "hung")
	all := []string{"c1"}
	for i := range 70 {
		id := fmt.Sprint("h", i)
		all = append(all, id)
		socket := hung + fmt.Sprint(i)
		l, err := net.Listen("unix", socket) // nobody accepts
		must(t, err)
		t.Cleanup(func() { must(t, l.Close()) })
		write(t, filepath.Join(n.config.State, "io.containerd.runtime.v2.task/ns", id), map[string]string{"address": "unix://" + socket})
	}
	containerd.ids = all
	n.config.Timeout = time.Second
	s := snapshot(t, n)
	if c := s.Container("ns", "c1"); c.State != Running {
		t.Errorf("the container of the shim that answers: %+v", c)
	}
	if c := s.Container("ns", "h69"); c.State != Dead || !strings.Contains(c.Error, "does not answer within 1s") {
		t.Errorf("the container of a shim that hangs: %+v", c)
	}
}

// Root does not believe what another user's process says.
func TestDial_RefusesASocketOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	dir, err := os.MkdirTemp("", "s")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o777))
	listen := func(name string, uid uintptr) string {
		path := filepath.Join(dir, name)
		runtime.LockOSThread() // of this thread alone the user is changed
		const keep = ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uid, keep); errno != 0 {
			t.Fatalf("setresuid: %v", errno)
		}
		l, err := net.Listen("unix", path)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
			t.Fatalf("setresuid: %v", errno) // and the thread ends with the test
		}
		runtime.UnlockOSThread()
		must(t, err)
		t.Cleanup(func() { must(t, l.Close()) })
		return path
	}
	for name, uid := range map[string]uintptr{"own": 0, "other": 1000} {
		conn, err := dial(t.Context(), Config{Address: listen(name, uid), Timeout: 10 * time.Second})
		if conn != nil {
			must(t, conn.Close())
		}
		refused := err != nil && strings.Contains(err.Error(), "belongs to user 1000")
		if refused != (uid != 0) {
			t.Errorf("dial of a socket of user %d: %v", uid, err)
		}
	}
}

// A bundle may go after containerd was asked, and before the shim is.
func TestSnapshot_ContainerWhoseBundleHasGoneHasNoTask(t *testing.T) {
	n, _ := newNode(t)
	n.shims = map[string]*shimState{}
	dir := filepath.Join(n.config.State, "io.containerd.runtime.v2.task/ns/c1")
	socket := filepath.Join(n.config.State, "shim")
	l, err := net.Listen("unix", socket)
	must(t, err)
	write(t, dir, map[string]string{"address": "unix://" + socket})
	n.add("ns", &containersapi.Container{ID: "c1"})
	must(t, errors.Join(l.Close(), os.RemoveAll(dir)))
	n.askShims(t.Context())
	if c := n.containers[0]; c.State != NoTask || c.Error != "" || c.shim.Error != "" {
		t.Errorf("container %+v of shim %+v, want no task and no error", c.Container, c.shim.Shim)
	}
}

// The pid of a task that has ended may be another process's by now.
func TestSnapshot_AsksNoPidOfATaskThatHasEnded(t *testing.T) {
	h, err := measure.FindHierarchies("/")
	must(t, err)
	n := &Node{hierarchies: h}
	for state, want := range map[State]bool{
		Created: true, Running: true, Pausing: true, Paused: true, Stopped: false, Dead: false, NoTask: false,
	} {
		c := &container{Container: Container{State: state, Pid: os.Getpid()}}
		n.readUsage(c)
		if got := c.Usage.Cgroup; (got != "") != want {
			t.Errorf("cgroup of a container in state %s = %q, want one: %t", state, got, want)
		}
	}
}
