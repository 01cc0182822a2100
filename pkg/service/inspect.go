// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/ttrpc"
	json "github.com/go-json-experiment/json/v1"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/protofield"
	"sandbox.internal/shim/pkg/sandbox"
	"sandbox.internal/shim/pkg/task"
)

const (
	inspectServiceName = "io.containerd.sandbox.v1.Inspect"
	runsServiceName    = "io.containerd.sandbox.v1.Runs"
)

// Shim is what the services know about the process that they run in.
type Shim struct {
	Version    string
	Started    time.Time
	Socket     string       // its path
	Containerd string       // socket that gets the events
	Events     *event.Queue // events to containerd
	Clients    func() int   // how many are connected
}

// inspectService is this shim's own services (inspect.proto, runs.proto), whose messages are encoded by the numbers of
// their fields.
type inspectService struct {
	shim    Shim
	manager *task.Manager
	pods    *sandbox.Controller
}

func (s *inspectService) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{"Inspect": encodedMethod(s.Inspect), "Stacks": encodedMethod(s.Stacks)}
}

func (s *inspectService) runsMethods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{"Verdicts": encodedMethod(s.Verdicts), "Processes": encodedMethod(s.Processes)}
}

func (s *inspectService) Inspect(_ context.Context, id string, _ []byte) ([]byte, error) {
	answer := inspect.Answer{Shim: s.inspectShim(), Pod: s.pods.Inspect(), Containers: []inspect.ContainerInfo{}}
	containers := s.manager.Containers()
	if id != "" {
		c, err := s.manager.Container(id)
		if err != nil {
			return nil, err
		}
		containers = []*task.Task{c}
	}
	left := inspect.MaxExecs
	for _, c := range containers {
		one := c.Inspect(left)
		left -= len(one.Execs.List)
		answer.Containers = append(answer.Containers, one)
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	return protofield.Encode(text)
}

func (s *inspectService) inspectShim() inspect.Shim {
	b := s.shim.Events.Backlog()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	answer := inspect.Shim{
		Version: s.shim.Version, Pid: os.Getpid(), Started: s.shim.Started, Namespace: s.manager.Namespace(),
		Socket: s.shim.Socket, Containerd: s.shim.Containerd, Clients: s.shim.Clients(),
		Events:     inspect.Events{Sent: b.Sent, Waiting: b.Waiting, Since: b.Since},
		Goroutines: runtime.NumGoroutine(), Heap: memory.HeapAlloc, HeapHeld: memory.HeapSys - memory.HeapReleased,
	}
	if b.Oldest != nil {
		answer.Events.Oldest = strings.TrimPrefix(fmt.Sprintf("%T", b.Oldest), "event.")
	}
	if b.Problem != nil {
		answer.Events.Problem = b.Problem.Error()
	}
	return answer
}

// maxStacks bounds the text of Stacks: ttrpc carries messages of up to 4 MiB.
const maxStacks = 3 << 20

func (*inspectService) Stacks(context.Context, string, []byte) ([]byte, error) {
	text := make([]byte, maxStacks) // uses memory only as far as it is written to
	n := runtime.Stack(text, true)
	return protofield.Encode(strings.ToValidUTF8(string(text[:n]), "?"), n == maxStacks)
}

func (s *inspectService) Verdicts(_ context.Context, id string, request []byte) ([]byte, error) {
	c, err := s.manager.Container(id)
	if err != nil {
		return nil, err
	}
	var execID string
	if err := decode(request, nil, &execID); err != nil {
		return nil, err
	}
	var verdicts [][]any
	for _, v := range c.Verdicts() {
		if execID == "" || v.Exec == execID {
			verdicts = append(verdicts, verdictFields(v))
		}
	}
	return protofield.Encode(verdicts)
}

func verdictFields(v limit.Verdict) []any {
	return []any{
		v.Container, v.Exec, uint32(v.Pid), timestamp(v.Started), timestamp(v.Ended), uint32(v.Status), uint32(v.Signal),
		string(v.Limit), uint64(v.Wall), uint64(v.CPU), uint64(v.User), uint64(v.System), v.MemoryPeak, v.OOMKills,
		v.ForksRefused, streamFields(v.Stdout), streamFields(v.Stderr),
	}
}

func streamFields(s limit.Stream) []any { return []any{uint64(s.Written), uint64(s.Dropped)} }

func (s *inspectService) Processes(_ context.Context, id string, _ []byte) ([]byte, error) {
	c, err := s.manager.Container(id)
	if err != nil {
		return nil, err
	}
	all, partial, err := c.Processes()
	if err != nil {
		return nil, err
	}
	var processes [][]any
	for _, p := range all {
		processes = append(processes, processFields(p))
	}
	return protofield.Encode(processes, partial)
}

func processFields(p task.ProcessInfo) []any {
	return []any{uint32(p.Pid), p.Exec, p.First, p.Name, timestamp(p.Started), uint64(p.CPU), p.RSS}
}
