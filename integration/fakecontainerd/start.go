// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/harness"
)

// Generation is a way in which some releases of containerd start a shim and read its answer.
type Generation int

// The generations. 2.0 to 2.2 read JSON too, with a version of up to 3; what tells them from 1.7 is the program that
// calls.
const (
	Params Generation = iota // 2.3 and later: protobuf in, protobuf out
	JSON                     // 1.7: options in, JSON with a version of at most 2 out
	Plain                    // 1.6: options in, the bare address out
)

// Answer is what a shim's start command returned to containerd.
type Answer struct {
	Version  int32
	Address  string
	Protocol string
	Stdout   []byte // as it came
}

// startLimit bounds a start or delete command. A daemon that inherits stdout would keep it from ending.
const startLimit = 10 * time.Second

// Start runs the shim's start command for a bundle. The error has what the command wrote.
func (f *Fake) Start(b *Bundle, g Generation, options *anypb.Any) (Answer, error) {
	f.Helper()
	var in []byte
	var err error
	switch {
	case g == Params:
		p := &bootstrap.BootstrapParams{
			InstanceID: b.ID, Namespace: f.Namespace, ContainerdVersion: "2.4.2",
			ContainerdTtrpcAddress: f.TTRPCAddress(), ContainerdGrpcAddress: f.Address, ContainerdBinary: "/bin/false",
			SocketDir: &f.Sockets,
		}
		if options != nil {
			p.Extensions = []*bootstrap.Extension{{Value: options}}
		}
		in, err = proto.Marshal(p)
	case options != nil:
		in, err = proto.Marshal(options)
	}
	f.Must(err, "parameters")
	env := []string{}
	if g != Plain {
		env = append(env, "MAX_SHIM_VERSION=2")
	}
	out, stderr, err := f.command(b, env, in, "-id", b.ID, "start")
	if err == nil && len(stderr) > 0 {
		// containerd takes what start writes to stderr for a part of the answer.
		err = fmt.Errorf("start wrote to stderr: %q", stderr)
	}
	if err != nil {
		return Answer{Stdout: out}, err
	}
	return parseAnswer(g, out)
}

func parseAnswer(g Generation, out []byte) (Answer, error) {
	a := Answer{Stdout: out}
	switch g {
	case Params:
		var r bootstrap.BootstrapResult
		if err := proto.Unmarshal(out, &r); err != nil {
			return a, fmt.Errorf("answer %q: %w", out, err)
		}
		a.Version, a.Address, a.Protocol = r.GetVersion(), r.GetAddress(), r.GetProtocol()
	case JSON:
		var r struct {
			Version           int32
			Address, Protocol string
		}
		if err := json.Unmarshal(out, &r); err != nil {
			return a, fmt.Errorf("answer %q: %w", out, err)
		}
		a.Version, a.Address, a.Protocol = r.Version, r.Address, r.Protocol
	case Plain:
		a.Version, a.Address, a.Protocol = 2, string(out), "ttrpc"
	}
	if !strings.HasPrefix(a.Address, "unix:///") {
		return a, fmt.Errorf("answer %q: address %q, want one of a unix socket", out, a.Address)
	}
	return a, nil
}

// command runs the shim binary in a bundle as containerd does, and returns what it wrote to stdout and stderr. Both are
// in the error, too.
func (f *Fake) command(b *Bundle, env []string, stdin []byte, arg ...string) (out, errOut []byte, err error) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Ctx, startLimit)
	defer cancel()
	argv := append([]string{
		f.Env.Shim, "-namespace", f.Namespace, "-address", f.Address, "-publish-binary", "/bin/false",
	}, arg...)
	if f.Faults != nil {
		argv = f.Faults.Command(argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = b.Path
	cmd.Env = append(env, "PATH="+f.Env.Path(), "GOMAXPROCS=2", "TTRPC_ADDRESS="+f.TTRPCAddress(),
		"GRPC_ADDRESS="+f.Address, "NAMESPACE="+f.Namespace)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr // pipes, whose end Run waits for
	err = cmd.Run()
	// strace fails at the end if a process that it traces dies while it is stopped. A command that failed has no answer.
	const ofStrace = "strace: ptrace(PTRACE_LISTEN"
	answered := f.Faults != nil && stdout.Len() > 0 && strings.Contains(stderr.String(), ofStrace)
	if err != nil && !answered {
		err = fmt.Errorf("%s: %w: stdout %q, stderr %q", strings.Join(arg, " "), err, &stdout, &stderr)
		return stdout.Bytes(), stderr.Bytes(), err
	}
	return stdout.Bytes(), stderr.Bytes(), nil
}

// Shim is a started shim with a connection to its Task service.
type Shim struct {
	Task
	fake   *Fake
	Answer Answer
	Pid    int
	bundle *Bundle
}

// Log returns what the shim has logged since the last call.
func (s *Shim) Log() string { return s.bundle.ReadLog() }

// Shim starts the shim of a bundle and connects to it.
func (f *Fake) Shim(b *Bundle) *Shim {
	f.Helper()
	a, err := f.Start(b, Params, nil)
	f.Must(err, "start shim")
	return f.Connect(b, a)
}

// Connect dials the shim that answered a.
func (f *Fake) Connect(b *Bundle, a Answer) *Shim {
	f.Helper()
	t := f.Dial(a.Address, "v3")
	r, err := t.Connect(f.Ctx, &task.ConnectRequest{ID: b.ID})
	f.Must(err, "connect")
	return &Shim{Task: t, fake: f, Answer: a, Pid: int(r.GetShimPid()), bundle: b}
}

// Remove deletes a bundle, as containerd does after a delete, and fails when something is still mounted there.
func (f *Fake) Remove(b *Bundle) {
	f.Helper()
	if leaks := (harness.Scope{Namespace: f.Namespace, MountsIn: b.Path}).Mounts(); len(leaks) > 0 {
		f.Errorf("left in bundle: %q", leaks)
		return
	}
	f.Must(os.RemoveAll(b.Path), "remove bundle")
}

// SocketOf returns the path of an answer's socket.
func SocketOf(a Answer) string { return filepath.Clean(strings.TrimPrefix(a.Address, "unix://")) }

// CreateRequest asks for the container of a bundle, without input or output.
func (b *Bundle) CreateRequest() *task.CreateTaskRequest {
	return &task.CreateTaskRequest{ID: b.ID, Bundle: b.Path, Rootfs: b.Mounts}
}

// Run creates and starts the container of a bundle and returns its pid.
func (s *Shim) Run(b *Bundle) int {
	s.fake.Helper()
	_, err := s.Create(s.fake.Ctx, b.CreateRequest())
	s.fake.Must(err, "create "+b.ID)
	r, err := s.Start(s.fake.Ctx, &task.StartRequest{ID: b.ID})
	s.fake.Must(err, "start "+b.ID)
	return int(r.GetPid())
}

// ProcessSpec is an Any of a process that runs args, as containerd sends it for an exec.
func (f *Fake) ProcessSpec(change func(*specs.Process), args ...string) *anypb.Any {
	f.Helper()
	p := &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}}
	if change != nil {
		change(p)
	}
	spec, err := typeurl.MarshalAnyToProto(p)
	f.Must(err, "process spec")
	return spec
}

// RunExec adds an exec and starts it.
func (s *Shim) RunExec(id, execID string, args ...string) {
	s.fake.Helper()
	_, err := s.Exec(s.fake.Ctx,
		&task.ExecProcessRequest{ID: id, ExecID: execID, Spec: s.fake.ProcessSpec(nil, args...)})
	s.fake.Must(err, "exec "+execID)
	_, err = s.Start(s.fake.Ctx, &task.StartRequest{ID: id, ExecID: execID})
	s.fake.Must(err, "start "+execID)
}

// KillAndDelete ends a container and removes it and its bundle.
func (s *Shim) KillAndDelete(b *Bundle) {
	s.fake.Helper()
	_, err := s.Kill(s.fake.Ctx, &task.KillRequest{ID: b.ID, Signal: 9, All: true})
	s.fake.Must(err, "kill "+b.ID)
	_, err = s.Wait(s.fake.Ctx, &task.WaitRequest{ID: b.ID})
	s.fake.Must(err, "wait for "+b.ID)
	_, err = s.Delete(s.fake.Ctx, &task.DeleteRequest{ID: b.ID})
	s.fake.Must(err, "delete "+b.ID)
	s.fake.Remove(b)
}

// End asks the shim to shut down. The leak check sees whether it does.
func (s *Shim) End() {
	s.fake.Helper()
	// A shim may be gone before its answer is: containerd ignores this error too.
	_, _ = s.Shutdown(s.fake.Ctx, &task.ShutdownRequest{ID: "any"})
}

// DeleteCommand runs the shim's delete command for a bundle, as containerd does when the shim is gone, and decodes its
// answer. What it writes to stderr is a warning in containerd's log. Stdin is empty, and the command gets neither
// options nor the directory of the sockets.
func (f *Fake) DeleteCommand(b *Bundle) (*task.DeleteResponse, error) {
	f.Helper()
	r, _, err := f.DeleteCommandIn(b)
	return r, err
}

// DeleteCommandIn is DeleteCommand with further variables in the environment. It returns also what the command wrote to
// stderr.
func (f *Fake) DeleteCommandIn(b *Bundle, env ...string) (*task.DeleteResponse, string, error) {
	f.Helper()
	out, errOut, err := f.command(b, append(env, "MAX_SHIM_VERSION=2"), nil, "-id", b.ID, "-bundle", b.Path, "delete")
	if err != nil {
		return nil, "", err
	}
	r := &task.DeleteResponse{}
	if err := proto.Unmarshal(out, r); err != nil {
		return nil, "", fmt.Errorf("answer %q: %w", out, err)
	}
	return r, string(errOut), nil
}
