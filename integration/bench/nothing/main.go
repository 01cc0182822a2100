// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// nothing is a shim that makes no container: it runs the program on the host, when it is started. What it takes is what
// containerd, its client, the shim protocol and a plain Go program take. make bench measures it beside the others. It
// links as little as such a program can: the messages of version 3 of the task service are those of version 2, whose
// package has no gRPC (decision 0013), and the two other messages are encoded here.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	taskstatus "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func main() {
	var err error
	switch os.Args[len(os.Args)-1] {
	case "start":
		err = start()
	case "serve":
		err = serve()
	} // delete: an empty answer is one
	if err != nil {
		fmt.Fprintln(os.Stderr, "nothing:", err)
		os.Exit(1)
	}
}

// start prints the socket of the pod's shim, which it starts if it is not there.
func start() error {
	id, address, namespace := flag("-id"), flag("-address"), flag("-namespace")
	spec, err := readSpec(".")
	if err != nil {
		return err
	}
	if pod := spec.Annotations["io.kubernetes.cri.sandbox-id"]; pod != "" {
		id = pod
	}
	socket := filepath.Join(filepath.Dir(address), "nothing-"+id)
	l, err := net.Listen("unix", socket)
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		file, err := l.(*net.UnixListener).File()
		if err != nil {
			return err
		}
		daemon := exec.Command("/proc/self/exe", "-namespace", namespace, "-address", address, "-id", id, "serve")
		daemon.ExtraFiles, daemon.SysProcAttr = []*os.File{file}, &syscall.SysProcAttr{Setsid: true}
		if err := daemon.Start(); err != nil {
			return err
		}
	} else if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	_, err = os.Stdout.Write(bootstrapResult("unix://" + socket))
	return err
}

// bootstrapResult is an encoded BootstrapResult (containerd api/runtime/bootstrap/v1), which containerd 2.4 takes.
func bootstrapResult(address string) []byte {
	const version, socket, protocol = 1, 2, 3
	b := number(nil, version, 3)
	b = message(b, socket, []byte(address))
	return message(b, protocol, []byte("ttrpc"))
}

// number appends a field to an encoded message.
func number(to []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), value)
}

// message appends a field that is a message or a string.
func message(to []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, field, protowire.BytesType), value)
}

// flag is the value of one of the arguments that containerd gives.
func flag(name string) string {
	for i, a := range os.Args[:len(os.Args)-1] {
		if a == name {
			return os.Args[i+1]
		}
	}
	return ""
}

// spec is what this reads of a container's config.json.
type spec struct {
	Annotations map[string]string `json:"annotations"`
	Process     struct {
		Args []string `json:"args"`
	} `json:"process"`
}

func readSpec(bundle string) (s spec, err error) {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

func serve() error {
	const inherited = 3
	l, err := net.FileListener(os.NewFile(inherited, "socket"))
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	s := &shim{all: map[string]*program{}}
	server.RegisterService("containerd.task.v3.Task", &ttrpc.ServiceDesc{Methods: s.methods()})
	return server.Serve(context.Background(), l)
}

// shim has what stands for containers.
type shim struct {
	mu  sync.Mutex // guards all
	all map[string]*program
}

type program struct {
	cmd    *exec.Cmd
	stdout string // path of a fifo, "" for none
	stderr string
	ended  sync.Once     // without having been started
	exited chan struct{} // closed when it has exited
	at     time.Time     // of the exit
}

// methods are the calls that the bench makes.
func (s *shim) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"Create":   method(s.Create),
		"Start":    method(s.Start),
		"Wait":     method(s.Wait),
		"State":    method(s.State),
		"Kill":     method(s.Kill),
		"Delete":   method(s.Delete),
		"Stats":    method(s.Stats),
		"Connect":  method(s.Connect),
		"Shutdown": method(s.Shutdown),
	}
}

func method[Request, Response any](call func(context.Context, *Request) (*Response, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		r := new(Request)
		if err := unmarshal(r); err != nil {
			return nil, err
		}
		answer, err := call(ctx, r)
		if err != nil {
			return nil, errgrpc.ToGRPC(err)
		}
		return answer, nil
	}
}

func (s *shim) program(id string) (*program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.all[id]
	if p == nil {
		return nil, fmt.Errorf("program %q: %w", id, errdefs.ErrNotFound)
	}
	return p, nil
}

func (s *shim) Create(_ context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	spec, err := readSpec(r.Bundle)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(spec.Process.Args[0], spec.Process.Args[1:]...)
	if _, err := exec.LookPath(spec.Process.Args[0]); err != nil { // the host lacks it, as it does the pause of a pod
		cmd = exec.Command("sleep", "86400")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[r.ID] = &program{cmd: cmd, stdout: r.Stdout, stderr: r.Stderr, exited: make(chan struct{})}
	return &task.CreateTaskResponse{Pid: uint32(os.Getpid())}, nil
}

func (s *shim) Start(_ context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	p, err := s.program(r.ID)
	if err != nil {
		return nil, err
	}
	if err := p.start(); err != nil {
		return nil, err
	}
	go func() { // ends with the program
		_ = p.cmd.Wait() // its status tells
		p.at = time.Now()
		close(p.exited)
	}()
	return &task.StartResponse{Pid: uint32(p.cmd.Process.Pid)}, nil
}

// start has the program write into the fifos itself.
func (p *program) start() error {
	for name, to := range map[string]*io.Writer{p.stdout: &p.cmd.Stdout, p.stderr: &p.cmd.Stderr} {
		if name == "" {
			continue
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0) // which does not wait for a reader
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // the program has one of its own
		*to = f
	}
	return p.cmd.Start()
}

func (s *shim) Wait(_ context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	p, err := s.program(r.ID)
	if err != nil {
		return nil, err
	}
	<-p.exited
	return &task.WaitResponse{ExitStatus: p.status(), ExitedAt: timestamppb.New(p.at)}, nil
}

func (p *program) status() uint32 {
	return uint32(max(p.cmd.ProcessState.ExitCode(), 0)) // -1 after a signal
}

func (s *shim) State(_ context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	p, err := s.program(r.ID)
	if err != nil {
		return nil, err
	}
	state := &task.StateResponse{ID: r.ID, Status: taskstatus.Status_CREATED}
	select {
	case <-p.exited:
		state.Status, state.ExitStatus, state.ExitedAt = taskstatus.Status_STOPPED, p.status(), timestamppb.New(p.at)
	default:
		if p.cmd.Process != nil { // the bench asks only when Start has been answered
			state.Status, state.Pid = taskstatus.Status_RUNNING, uint32(p.cmd.Process.Pid)
		}
	}
	return state, nil
}

func (s *shim) Kill(_ context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	p, err := s.program(r.ID)
	if err != nil {
		return nil, err
	}
	if p.cmd.Process == nil { // created only
		p.ended.Do(func() {
			p.at = time.Now()
			close(p.exited)
		})
		return &emptypb.Empty{}, nil
	}
	_ = p.cmd.Process.Signal(syscall.Signal(r.Signal)) // dead already is as good
	return &emptypb.Empty{}, nil
}

func (s *shim) Delete(_ context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	p, err := s.program(r.ID)
	if err != nil {
		return nil, err
	}
	<-p.exited
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, r.ID)
	return &task.DeleteResponse{ExitStatus: p.status(), ExitedAt: timestamppb.New(p.at)}, nil
}

// Stats reads nothing. Its answer is an encoded Metrics (cgroups/v3/cgroup1/stats): 1 ns of CPU time, 1 byte of cache.
func (s *shim) Stats(context.Context, *task.StatsRequest) (*task.StatsResponse, error) {
	const cpu, memory, usage, total, cache = 3, 4, 1, 1, 1
	metrics := message(nil, cpu, message(nil, usage, number(nil, total, 1)))
	metrics = message(metrics, memory, number(nil, cache, 1))
	return &task.StatsResponse{Stats: &anypb.Any{TypeUrl: "io.containerd.cgroups.v1.Metrics", Value: metrics}}, nil
}

// Connect answers with the shim's pid also for the container's init: containerd does not kill a task whose pid is 0.
func (s *shim) Connect(context.Context, *task.ConnectRequest) (*task.ConnectResponse, error) {
	return &task.ConnectResponse{ShimPid: uint32(os.Getpid()), TaskPid: uint32(os.Getpid())}, nil
}

func (s *shim) Shutdown(context.Context, *task.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		time.AfterFunc(time.Millisecond, func() { os.Exit(0) }) // when the answer is sent
	}
	return &emptypb.Empty{}, nil
}
