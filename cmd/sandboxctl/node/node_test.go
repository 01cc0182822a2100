// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/protofield"
)

// fakeContainerd has containers, and no Sandbox API.
type fakeContainerd struct {
	containersapi.UnimplementedContainersServer
	versionapi.UnimplementedVersionServer
	hangs atomic.Bool
	mu    sync.Mutex
	// +checklocks:mu
	ids []string
}

func (f *fakeContainerd) Version(ctx context.Context, _ *emptypb.Empty) (*versionapi.VersionResponse, error) {
	if f.hangs.Load() {
		<-ctx.Done()
	}
	return &versionapi.VersionResponse{}, ctx.Err()
}

func (f *fakeContainerd) set(ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids = ids
}

func (f *fakeContainerd) list() (all []*containersapi.Container) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.ids {
		all = append(all, &containersapi.Container{ID: id})
	}
	return all
}

func (f *fakeContainerd) ListStream(
	_ *containersapi.ListContainersRequest, to containersapi.Containers_ListStreamServer,
) error {
	for _, c := range f.list() {
		if err := to.Send(&containersapi.ListContainerMessage{Container: c}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeContainerd) Get(
	_ context.Context, r *containersapi.GetContainerRequest,
) (*containersapi.GetContainerResponse, error) {
	for _, c := range f.list() {
		if c.ID == r.ID {
			return &containersapi.GetContainerResponse{Container: c}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

// fakeShim says that it runs c1, of which it counts execs.
type fakeShim struct{ started, running uint64 }

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
		Containers: []inspect.Container{{ID: "c1", State: string(Running), Execs: inspect.Execs{Started: f.started}}},
	})
	must(t, err)
	execs, err := protofield.Encode("c1", f.started, f.running)
	must(t, err)
	server, err := ttrpc.NewServer()
	must(t, err)
	server.RegisterService("io.containerd.sandbox.v1.Inspect", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Inspect": encoded(text), "Histograms": encoded([][]byte(nil), [][]byte{execs}),
	}})
	l, err := net.Listen("unix", socket)
	must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(context.Background(), l) }() // ends with the server
	t.Cleanup(func() { _ = server.Close(); <-done })
}

// newNode follows the events that a test adds.
func newNode(t *testing.T) (*Node, *fakeContainerd) {
	t.Helper()
	state, err := os.MkdirTemp("", "s") // a socket's path is limited to 107 bytes
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(state)) })
	f := &fakeContainerd{}
	server := grpc.NewServer()
	containersapi.RegisterContainersServer(server, f)
	versionapi.RegisterVersionServer(server, f)
	socket := filepath.Join(state, "containerd")
	l, err := net.Listen("unix", socket)
	must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }() // ends with the server
	t.Cleanup(func() { server.Stop(); <-done })
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	events := make(chan struct{})
	n := &Node{
		config: Config{Address: socket, State: state, Namespace: "ns", Timeout: 10 * time.Second}, conn: conn,
		containers: map[key]*container{}, sandboxes: map[key]*sandbox{}, shims: map[string]*shimState{},
		watch: &watch{cancel: sync.OnceFunc(func() { close(events) }), done: events, changed: noChanges()},
	}
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

func (n *Node) told(t *testing.T, event any) {
	t.Helper()
	packed, err := typeurl.MarshalAnyToProto(event)
	must(t, err)
	n.watch.add(&types.Envelope{Namespace: "ns", Event: packed})
}

func snapshot(t *testing.T, n *Node) *Snapshot {
	t.Helper()
	s, err := n.Snapshot(t.Context())
	must(t, err)
	return s
}

func ids(s *Snapshot) string {
	var all []string
	for _, p := range s.Pods {
		all = append(all, p.ID)
	}
	return strings.Join(all, " ")
}

// What events told is not lost with a snapshot that is cut off.
func TestSnapshot_ThatIsCutOffLosesNothing(t *testing.T) {
	n, containerd := newNode(t)
	containerd.set("a", "b")
	snapshot(t, n)
	if got := ids(snapshot(t, n)); got != "a b" {
		t.Fatalf("containers = %q, want a and b", got)
	}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		events []any
		now    string
	}{
		{[]any{&eventtypes.ContainerDelete{ID: "a"}, &eventtypes.ContainerCreate{ID: "c"}}, "b c"},
		{nil, "b"}, // found by a refresh
	} {
		containerd.set(strings.Fields(tc.now)...)
		for _, e := range tc.events {
			n.told(t, e)
		}
		if tc.events == nil {
			n.refreshed = time.Time{}
		}
		if _, err := n.Snapshot(cut); err == nil {
			t.Error("a snapshot that is cut off succeeded")
		}
		if got := ids(snapshot(t, n)); got != tc.now {
			t.Errorf("containers after a snapshot that was cut off = %q, want %q", got, tc.now)
		}
	}
}

// An exec is counted once, also if its event comes after the shim has counted it.
func TestSnapshot_CountsAnExecOnce(t *testing.T) {
	n, containerd := newNode(t)
	bundle(t, n, &fakeShim{started: 2000, running: 1500})
	containerd.set("c1")
	for i := range 4 {
		c := snapshot(t, n).Container("ns", "c1")
		if c.State != Running || !c.ExecsKnown || c.ExecsStarted != 2000 || c.Execs != 1500 {
			t.Errorf("snapshot %d: %+v, want 1500 execs of 2000", i, c)
		}
		n.told(t, &eventtypes.TaskExecStarted{ContainerID: "c1", ExecID: "e1"})
		if i == 2 {
			n.told(t, &eventtypes.TaskPaused{ContainerID: "c1"})
		}
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
	containerd.set(all...)
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
		conn, err := Dial(t.Context(), Config{Address: listen(name, uid), Timeout: 10 * time.Second})
		if conn != nil {
			must(t, conn.Close())
		}
		refused := err != nil && strings.Contains(err.Error(), "belongs to user 1000")
		if refused != (uid != 0) {
			t.Errorf("Dial of a socket of user %d: %v", uid, err)
		}
	}
}

// A bundle may go after containerd was asked, and before the shim is. Others that the shim has are asked for by theirs.
func TestSnapshot_ContainerWhoseBundleHasGoneHasNoTask(t *testing.T) {
	n, _ := newNode(t)
	bundle(t, n, &fakeShim{})
	all := func(*container) bool { return true }
	counted := func(string) bool { return true }
	for range 8 { // the order of maps is not the same each time
		clear(n.shims)
		for id, socket := range map[string]string{"c1": "shim", "c2": "shim", "c3": "other"} {
			c := &container{address: filepath.Join(n.config.State, socket), pod: "p", sandboxID: socket}
			c.Namespace, c.ID, c.State, c.Pid = "ns", id, Running, 1
			n.containers[c.key()] = c
		}
		n.sandboxes[key{"ns", "other"}] = &sandbox{address: filepath.Join(n.config.State, "other")}
		n.askAll(t.Context(), all, counted)
		for id, want := range map[string]State{"c1": Running, "c2": NoTask, "c3": NoTask} {
			if c := n.containers[key{"ns", id}]; c.State != want || c.Error != "" || c.Pid != 0 {
				t.Errorf("container %s: %+v, want %s", id, c.Container, want)
			}
		}
		for _, p := range n.pods() {
			if alive := p.ID == "shim"; p.Shim.Error != "" || (p.Shim.Pid != 0) != alive {
				t.Errorf("shim of %s: %+v, want one that lives: %t", p.ID, p.Shim, alive)
			}
		}
	}
}

// The pid of a task that has ended may be another process's by now.
func TestSnapshot_AsksNoPidOfATaskThatHasEnded(t *testing.T) {
	h, err := measure.FindHierarchies()
	must(t, err)
	n := &Node{hierarchies: h}
	for state, want := range map[State]bool{
		Created: true, Running: true, Pausing: true, Paused: true, Stopped: false, Dead: false, NoTask: false,
	} {
		c := &container{Container: Container{State: state, Pid: os.Getpid()}}
		n.readUsage(c)
		c.group.Close()
		if got := c.Usage.Cgroup; (got != "") != want {
			t.Errorf("cgroup of a container in state %s = %q, want one: %t", state, got, want)
		}
		if got := namespacesOf(c.livingPid(), 0); (len(got) > 0) != want {
			t.Errorf("namespaces of a container in state %s = %v, want some: %t", state, got, want)
		}
	}
}
