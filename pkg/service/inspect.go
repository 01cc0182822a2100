// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/ttrpc"
	json "github.com/go-json-experiment/json/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/group"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/protofield"
	"sandbox.internal/shim/pkg/task"
)

// Shim is what the service knows about the process that they run in.
type Shim struct {
	Version    string
	Namespace  string // containerd's, of all containers
	Started    time.Time
	Socket     string       // its path
	Containerd string       // socket that gets the events
	Events     *event.Queue // events to containerd
	Clients    func() int   // how many are connected

	// What start answered, to which request, and the address in that.
	Answer          []byte
	Digest, Address string

	// Upgrade replaces this program by the installed one, after which it does not return: UpgradeAnswer is the answer. It
	// returns false if that runs already, and true for a dry run, in which nothing but the replacement happens.
	Upgrade func(ctx context.Context, dryRun bool) (bool, error)
}

// inspectService is this shim's own service (inspect.proto), whose messages are encoded by the numbers of their fields.
type inspectService struct {
	shim  Shim
	group *group.Group
}

func (s *inspectService) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"Inspect": encodedMethod(s.Inspect), "Stacks": encodedMethod(s.Stacks), UpgradeMethod: encodedMethod(s.Upgrade),
		bootstrap.JoinMethod: encodedMethod(s.Join), "Sleep": encodedMethod(s.Sleep), "Wake": encodedMethod(s.Wake),
		"WaitIdle": encodedMethod(s.WaitIdle),
	}
}

func (s *inspectService) Sleep(_ context.Context, id string, _ []byte) ([]byte, error) {
	c, err := s.group.Of(id).Tasks.Container(id)
	if err != nil {
		return nil, err
	}
	return nil, c.Sleep()
}

func (s *inspectService) Wake(_ context.Context, id string, _ []byte) ([]byte, error) {
	c, err := s.group.Of(id).Tasks.Container(id)
	if err != nil {
		return nil, err
	}
	c.Wake()
	return nil, nil
}

// WaitIdle answers when a container falls asleep or wakes.
func (s *inspectService) WaitIdle(ctx context.Context, id string, request []byte) ([]byte, error) {
	var changes uint64
	if err := decode(request, nil, &changes); err != nil {
		return nil, err
	}
	c, err := s.group.Of(id).Tasks.Container(id)
	if err != nil {
		return nil, err
	}
	idle, err := c.AwaitSleep(ctx, changes)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(idle)
	if err != nil {
		return nil, fmt.Errorf("wait: %w", err)
	}
	return protofield.Encode(text)
}

// Join takes a container or a pod for which start was called.
func (s *inspectService) Join(ctx context.Context, id string, request []byte) ([]byte, error) {
	r := bootstrap.JoinRequest{ID: id}
	if err := decode(request, nil, &r.Pod, &r.Bundle, &r.Digest, &r.Program); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // the caller has gone to another shim
		return nil, err
	}
	if !s.group.Join(r) {
		return nil, nil
	}
	answer := s.shim.Answer
	if r.Digest != s.shim.Digest {
		answer = nil // of another containerd, say: the caller knows its own
	}
	return protofield.Encode(answer, s.shim.Address)
}

// UpgradeMethod is the method that asks for the installed program.
const UpgradeMethod = "Upgrade"

func (s *inspectService) Upgrade(ctx context.Context, _ string, request []byte) ([]byte, error) {
	var dryRun bool
	if err := decode(request, nil, &dryRun); err != nil {
		return nil, err
	}
	upgraded, err := s.shim.Upgrade(ctx, dryRun)
	if err != nil {
		return nil, err
	}
	return encodeUpgrade(s.shim.Version, upgraded)
}

func encodeUpgrade(version string, upgraded bool) ([]byte, error) {
	var number uint32
	if upgraded {
		number = 1
	}
	return protofield.Encode(version, number)
}

// UpgradeAnswer is the answer of a program that has taken over, in the version that runs now, or of the former one, to
// which its successor has returned because of err.
func UpgradeAnswer(version string, err error) *ttrpc.Response {
	payload, encodeErr := encodeUpgrade(version, true)
	if err = errors.Join(err, encodeErr); err != nil {
		return &ttrpc.Response{Status: status.Convert(toStatus(err)).Proto()}
	}
	return &ttrpc.Response{Status: status.New(codes.OK, "").Proto(), Payload: payload}
}

func (s *inspectService) Inspect(_ context.Context, id string, _ []byte) ([]byte, error) {
	answer := inspect.Answer{Shim: s.inspectShim(), Containers: []inspect.ContainerInfo{}}
	var containers []*task.Task
	for _, u := range s.group.All() {
		answer.Pod = cmp.Or(answer.Pod, u.Pods.Inspect())
		containers = append(containers, u.Tasks.Containers()...)
	}
	if id != "" {
		c, err := s.group.Of(id).Tasks.Container(id)
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
		Version: s.shim.Version, Pid: os.Getpid(), Started: s.shim.Started, Namespace: s.shim.Namespace,
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

// maxStacks is where the text of Stacks is cut off: ttrpc carries messages of up to 4 MiB.
const maxStacks = 3 << 20

func (*inspectService) Stacks(context.Context, string, []byte) ([]byte, error) {
	text := make([]byte, maxStacks) // uses memory only as far as it is written to
	n := runtime.Stack(text, true)
	return protofield.Encode(strings.ToValidUTF8(string(text[:n]), "?"))
}
