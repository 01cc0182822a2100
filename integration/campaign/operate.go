// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/harness"
)

// operate does what the step says, without companion and fault, and returns the answer in the words of the model.
func (e *Env) operate(ctx context.Context, s Step) string {
	p := e.places[s.Container]
	t := e.client.TaskService()
	id, exec := p.id, execID(s.Exec)
	if id == "" {
		id = e.newID(p, "c")
	}
	switch s.Op {
	case Create:
		return e.create(ctx, p, s)
	case Start:
		return e.start(ctx, p, s.Exec)
	case AddExec:
		return e.addExec(ctx, p, s)
	case Kill, KillAll:
		e.order.expectOOM(e.name, id, false)
		return e.call(ctx, func(ctx context.Context) error {
			_, err := t.Kill(ctx, &tasks.KillRequest{
				ContainerID: id, ExecID: exec, Signal: uint32(syscall.SIGKILL), All: s.Op == KillAll,
			})
			return err
		})
	case Pause, Resume:
		answer := e.call(ctx, func(ctx context.Context) error {
			if s.Op == Pause {
				_, err := t.Pause(ctx, &tasks.PauseTaskRequest{ContainerID: id})
				return err
			}
			_, err := t.Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
			return err
		})
		if answer == ok {
			e.order.frozen(e.name + "/" + id)
		}
		return answer
	case Update:
		return e.update(ctx, id)
	case Stats:
		return e.stats(ctx, id)
	case Pids:
		return e.pids(ctx, id)
	case State:
		return e.state(ctx, id, exec)
	case CloseIO:
		answer := e.call(ctx, func(ctx context.Context) error {
			_, err := t.CloseIO(ctx, &tasks.CloseIORequest{ContainerID: id, ExecID: exec, Stdin: true})
			return err
		})
		if answer == ok {
			e.streamsOf(p, s.Exec).endStdin()
		}
		return answer
	case Read:
		e.streamsOf(p, s.Exec).read()
		return ok
	case Resize:
		return e.call(ctx, func(ctx context.Context) error {
			_, err := t.ResizePty(ctx, &tasks.ResizePtyRequest{ContainerID: id, ExecID: exec, Width: 90, Height: 30})
			return err
		})
	case Wait:
		return e.wait(ctx, id, exec, e.pidOf(p, s.Exec))
	case Delete:
		if s.Exec == noExec {
			e.order.expectOOM(e.name, id, false) // it kills one whose start is under way
		}
		return e.remove(ctx, p, s.Exec)
	case Burst:
		return e.burst(ctx, p, s.Count)
	case Batch:
		return e.batch(ctx, s)
	case Remove:
		return e.clear(ctx, p)
	case Pod:
		return e.pod(ctx, s)
	case Upgrade:
		return e.upgrade(ctx, s)
	case Sleep:
		return e.sleep(ctx, p, harness.Sleep)
	case Restart:
		return e.restartGently(ctx)
	default:
		return fmt.Sprintf("error: no operation %q", s.Op)
	}
}

func (e *Env) update(ctx context.Context, id string) string {
	shares, limit := uint64(512), int64(500)
	r, err := typeurl.MarshalAnyToProto(&specs.LinuxResources{
		CPU: &specs.LinuxCPU{Shares: &shares}, Pids: &specs.LinuxPids{Limit: &limit},
	})
	if err != nil {
		return "error: " + err.Error()
	}
	return e.call(ctx, func(ctx context.Context) error {
		_, err := e.client.TaskService().Update(ctx, &tasks.UpdateTaskRequest{
			ContainerID: id, Resources: &anypb.Any{TypeUrl: r.GetTypeUrl(), Value: r.GetValue()},
		})
		return err
	})
}

func (e *Env) pids(ctx context.Context, id string) string {
	return e.call(ctx, func(ctx context.Context) error {
		_, err := e.client.TaskService().ListPids(ctx, &tasks.ListPidsRequest{ContainerID: id})
		return err
	})
}

// stats answers for how many containers there are metrics: containerd leaves out the others.
func (e *Env) stats(ctx context.Context, id string) string {
	n := 0
	answer := e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Metrics(ctx, &tasks.MetricsRequest{Filters: []string{"id==" + id}})
		n = len(r.GetMetrics())
		return err
	})
	if answer == ok {
		answer = fmt.Sprintf("%s %d", ok, n)
	}
	return answer
}

func (e *Env) state(ctx context.Context, id, exec string) string {
	var text string
	answer := e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id, ExecID: exec})
		text = words[r.GetProcess().GetStatus().String()]
		if text == words["STOPPED"] {
			text = fmt.Sprintf("%s %d", text, r.GetProcess().GetExitStatus())
		}
		return err
	})
	if answer == ok {
		answer = text
	}
	return answer
}

// words are the model's for containerd's states. A container that is being paused may count as either.
var words = map[string]string{
	"CREATED": created.String(), "RUNNING": running.String(), "PAUSED": paused.String(),
	"PAUSING": running.String(), "STOPPED": stopped.String(),
}

// wait answers with the exit status of a process, whose pid is 0 if nobody knows it. The caller knows that it ends.
func (e *Env) wait(ctx context.Context, id, exec string, pid int) string {
	code := uint32(0)
	answer := e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id, ExecID: exec})
		code = r.GetExitStatus()
		return err
	})
	if answer == ok {
		e.order.waited(e.name, id, exec, pid, code)
		answer = fmt.Sprintf("%s %d", ok, code)
	}
	return answer
}
