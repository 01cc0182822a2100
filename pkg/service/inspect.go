// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"
	json "github.com/go-json-experiment/json/v1"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/protofield"
	"sandbox.internal/shim/pkg/sandbox"
	"sandbox.internal/shim/pkg/task"
)

const inspectServiceName = "io.containerd.sandbox.v1.Inspect"

// Shim is what the services know about the process that they run in.
type Shim struct {
	Version    string
	Started    time.Time
	Socket     string       // its path
	Containerd string       // socket that gets the events
	Events     *event.Queue // events to containerd
	Clients    func() int   // how many are connected
}

// inspectService is io.containerd.sandbox.v1.Inspect, this shim's own (inspect.proto).
type inspectService struct {
	shim      Shim
	manager   *task.Manager
	pods      *sandbox.Controller
	durations *durations
}

func (s *inspectService) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"Inspect":    encodedMethod(s.Inspect),
		"Stacks":     encodedMethod(s.Stacks),
		"Histograms": encodedMethod(s.Histograms),
	}
}

func (s *inspectService) Inspect(_ context.Context, id string, _ []byte) ([]byte, error) {
	answer := inspect.Answer{Shim: s.inspectShim(), Pod: s.pods.Inspect(), Containers: []inspect.Container{}}
	containers := s.manager.Containers()
	if id != "" {
		c, err := s.manager.Container(id)
		if err != nil {
			return nil, err
		}
		containers = []*task.Container{c}
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

func (s *inspectService) Histograms(context.Context, string, []byte) ([]byte, error) {
	histograms, err := s.durations.encode()
	if err != nil {
		return nil, err
	}
	var execs [][]byte
	for _, c := range s.manager.Containers() {
		one, err := protofield.Encode(c.ID(), c.ExecsStarted(), uint64(len(c.Execs())))
		if err != nil {
			return nil, err
		}
		execs = append(execs, one)
	}
	return protofield.Encode(histograms, execs)
}

// operation is one whose durations are counted.
type operation int

const (
	opCreate operation = iota
	opStart
	opExec // the start of an exec
	opDelete
	operations
)

var operationNames = [operations]string{"create", "start", "exec", "delete"}

// bounds of the buckets. The last bucket has none.
var bounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// durations count how long operations took. The zero value is ready.
type durations [operations]struct {
	buckets [len(bounds) + 1]atomic.Uint64
	sum     atomic.Int64
	failed  atomic.Uint64
}

// errPanicked is the error of an operation that did not return.
var errPanicked = errors.New("panic")

// measure runs call and counts how long that took. A panic counts as a failure, and propagates.
func measure[T any](d *durations, op operation, call func() (T, error)) (answer T, err error) {
	err = errPanicked
	defer func(start time.Time) { d.ended(op, time.Since(start), err) }(time.Now())
	answer, err = call()
	return answer, err
}

// ended counts an operation: its duration if it succeeded, otherwise the failure.
func (d *durations) ended(op operation, took time.Duration, err error) {
	h := &d[op]
	if err != nil {
		h.failed.Add(1)
		return
	}
	i := 0
	for i < len(bounds) && took > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(took))
}

func (d *durations) encode() ([][]byte, error) {
	var all [][]byte
	for op := range d {
		var buckets [][]byte
		for i := range d[op].buckets {
			var bound uint64
			if i < len(bounds) {
				bound = uint64(bounds[i])
			}
			b, err := protofield.Encode(bound, d[op].buckets[i].Load())
			if err != nil {
				return nil, err
			}
			buckets = append(buckets, b)
		}
		one, err := protofield.Encode(operationNames[op], buckets, uint64(d[op].sum.Load()), d[op].failed.Load())
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}
