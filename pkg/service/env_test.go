// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	api "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/group"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/sandbox"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

const (
	taskV2 = "containerd.task.v2.Task"
	taskV3 = "containerd.task.v3.Task"
)

// env is a server on a socket, and a client. The containers' cgroup is a real one with a real process.
type env struct {
	t       *testing.T
	runtime *processtest.Runtime
	box     *task.Manager
	pod     *fakePod
	pods    *sandbox.Controller
	client  *ttrpc.Client
	name    string // of the service that is called
}

// listen makes a socket in a directory whose name is short: a socket's path is
// limited to 107 bytes.
func listen(t *testing.T) (path string, _ *net.UnixListener) {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	testx.Must(t, err)
	t.Cleanup(func() { testx.Must(t, os.RemoveAll(dir)) })
	path = filepath.Join(dir, "s")
	return path, listenAt(t, path)
}

func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	testx.Must(t, err)
	return l
}

// serve answers on l until the test ends or the function it returns is called.
func serve(t *testing.T, l *net.UnixListener, register func(*ttrpc.Server), opts ...ttrpc.ServerOpt) (stop func()) {
	t.Helper()
	server, err := ttrpc.NewServer(opts...)
	testx.Must(t, err)
	register(server)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(context.Background(), l) }() // ends with the server
	stop = sync.OnceFunc(func() { _ = server.Close(); <-ended })
	t.Cleanup(stop)
	return stop
}

func newEnv(t *testing.T, name string) *env {
	t.Helper()
	r := &processtest.Runtime{}
	r.Group, r.PID = newCgroup(t)
	queue := event.NewQueue(func(context.Context, event.Event, time.Time) error { return nil })
	t.Cleanup(func() { testx.Must(t, queue.Close(context.Background())) })
	w := &env{t: t, runtime: r, name: name}
	w.box = task.New(r, queue, stdio.NewHost("ns", noReaper{}), nil, settings.Core())
	w.pod = &fakePod{cgroup: "/" + filepath.Base(r.Group.String())}
	w.pods = sandbox.New(w.box, func(_ context.Context, r pod.Request) (sandbox.Pod, error) {
		w.pod.request = r
		return w.pod, nil
	})
	path, l := listen(t)
	shim := Shim{Version: "1.2.3", Namespace: "ns", Socket: path, Events: queue, Clients: func() int { return 1 }, Upgrade: w.upgrade}
	serve(t, l, func(s *ttrpc.Server) { Register(s, groupOf(w.box, w.pods), options.NewDefaults(""), shim) }, ttrpc.WithUnaryServerInterceptor(Intercept))
	conn, err := net.Dial("unix", path)
	testx.Must(t, err)
	w.client = ttrpc.NewClient(conn)
	t.Cleanup(func() { _ = w.client.Close() }) // the server may have gone first
	return w
}

// groupOf is a shim that has one unit.
func groupOf(tasks *task.Manager, pods *sandbox.Controller) *group.Group {
	one := func(string, string) *group.Unit { return &group.Unit{Tasks: tasks, Pods: pods} }
	return group.New(group.Config{Most: 1, Make: one}, "first", "/nowhere")
}

// newCgroup is a cgroup with one process, in some hierarchies of version 1 or in that of version 2.
func newCgroup(t *testing.T) (*cgroup.Cgroup, int) {
	t.Helper()
	cmd := exec.Command("/bin/cat")
	stdin, err := cmd.StdinPipe()
	testx.Must(t, err)
	testx.Must(t, cmd.Start())
	roots := map[string]string{"": "/sys/fs/cgroup"}
	if cgroups.Mode() != cgroups.Unified {
		roots = map[string]string{
			"memory": "/sys/fs/cgroup/memory", "pids": "/sys/fs/cgroup/pids", "cpuacct": "/sys/fs/cgroup/cpuacct",
		}
	}
	paths := map[string]string{}
	for controller, root := range roots {
		dir, err := os.MkdirTemp(root, "shim-test-")
		testx.Must(t, err)
		t.Cleanup(func() { testx.Must(t, os.Remove(dir)) })
		testx.Must(t, os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600))
		paths[controller] = dir
	}
	t.Cleanup(func() { _ = stdin.Close(); testx.Must(t, cmd.Wait()) })
	return cgroup.New(paths), cmd.Process.Pid
}

// call makes a call and returns the error that containerd sees.
func (w *env) call(method string, request, response proto.Message) error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	return errgrpc.ToNative(w.client.Call(ctx, w.name, method, request, response))
}

// must makes a call that has to succeed.
func (w *env) must(method string, request, response proto.Message) {
	w.t.Helper()
	if err := w.call(method, request, response); err != nil {
		w.t.Fatalf("%s: %v", method, err)
	}
}

func (w *env) create(id string) {
	w.t.Helper()
	w.must("Create", &api.CreateTaskRequest{ID: id, Bundle: newBundle(w.t)}, &api.CreateTaskResponse{})
}

func newBundle(t *testing.T) string {
	t.Helper()
	return testx.NewBundle(t, &specs.Spec{Root: &specs.Root{Path: "rootfs"}, Process: goodProcess(), Linux: &specs.Linux{}})
}

func packJSON(t *testing.T, name string, v any) *anypb.Any {
	t.Helper()
	data, err := json.Marshal(v)
	testx.Must(t, err)
	return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/" + name, Value: data}
}

func goodProcess() *specs.Process { return &specs.Process{Args: []string{"true"}, Cwd: "/"} }

func wantEqual(t *testing.T, what string, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("%s = %s\nwant %s", what, fmt.Sprint(got), fmt.Sprint(want))
	}
}

// noReaper is for a process that reaps no orphans.
type noReaper struct{ stdio.Children }

func (noReaper) Suspend() (resume func()) { return func() {} }
