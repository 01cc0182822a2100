// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
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
	simple := func(f func(ctx context.Context) error) string { return e.call(ctx, f) }
	switch s.Op {
	case Create:
		return e.create(ctx, p, s)
	case Start:
		return e.start(ctx, p, s.Exec)
	case AddExec:
		return e.addExec(ctx, p, s)
	case Kill, KillAll:
		e.order.expectOOM(e.name, id, false)
		return simple(func(ctx context.Context) error {
			_, err := t.Kill(ctx, &tasks.KillRequest{
				ContainerID: id, ExecID: exec, Signal: uint32(syscall.SIGKILL), All: s.Op == KillAll,
			})
			return err
		})
	case Pause:
		return simple(func(ctx context.Context) error {
			_, err := t.Pause(ctx, &tasks.PauseTaskRequest{ContainerID: id})
			return err
		})
	case Resume:
		return simple(func(ctx context.Context) error {
			_, err := t.Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
			return err
		})
	case Update:
		return e.update(ctx, id)
	case Stats:
		return e.stats(ctx, id)
	case Pids:
		return e.pids(ctx, id)
	case State:
		return e.state(ctx, id, exec)
	case CloseIO:
		answer := simple(func(ctx context.Context) error {
			_, err := t.CloseIO(ctx, &tasks.CloseIORequest{ContainerID: id, ExecID: exec, Stdin: true})
			return err
		})
		if answer == ok && s.Exec != noExec {
			e.mu.Lock()
			defer e.mu.Unlock()
			p.execs[s.Exec].streams.endStdin()
		}
		return answer
	case Resize:
		return simple(func(ctx context.Context) error {
			_, err := t.ResizePty(ctx, &tasks.ResizePtyRequest{ContainerID: id, ExecID: exec, Width: 90, Height: 30})
			return err
		})
	case Wait:
		return e.wait(ctx, id, exec)
	case Delete:
		return e.remove(ctx, p, s.Exec)
	case Burst:
		return e.burst(ctx, p, s.Count)
	case Remove:
		return e.clear(ctx, p)
	case Pod:
		return e.pod(ctx, s)
	case Restart:
		return e.restartGently(ctx)
	default:
		return fmt.Sprintf("error: no operation %q", s.Op)
	}
}

// newID is an id that no other container of the worker has had.
func (e *Env) newID(p *place, prefix string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.serial++
	return fmt.Sprintf("%s%d-%d-%d", prefix, p.number, e.round, e.serial)
}

// chooseID gives a place the id of its next container. A fault may look at it at the same time.
func (e *Env) chooseID(p *place, reuse bool) {
	if reuse && p.id != "" {
		e.order.awaitDelete(e.name, p.id)
		return
	}
	id := e.newID(p, "c")
	e.mu.Lock()
	defer e.mu.Unlock()
	p.id = id
}

func (e *Env) create(ctx context.Context, p *place, s Step) string {
	fresh := true
	if p.id != "" {
		switch state := e.state(ctx, p.id, ""); state {
		case notFound:
		default:
			fresh = false
		}
	}
	if fresh {
		if p.id != "" { // whose shim the fault of this step may have killed just now
			if err := e.forgetRecord(e.namespaced(ctx), p.id); err != nil {
				return "error: forget: " + err.Error()
			}
		}
		e.chooseID(p, s.Reuse)
		e.order.expectOOM(e.name, p.id, s.Program == hungry)
		process, err := e.record(e.namespaced(ctx), p.id, p.options(s)...)
		if err != nil {
			return "error: record: " + err.Error()
		}
		p.process, p.pid = process, 0
		p.closeStreams()
		e.count(func(t *Totals) { t.Containers++ })
	}
	answer := e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Create(ctx, &tasks.CreateTaskRequest{
			ContainerID: p.id, Rootfs: e.mounts(),
		})
		if err == nil {
			p.pid = int(r.GetPid())
		}
		return err
	})
	if answer != ok && fresh {
		if err := e.forgetRecord(e.namespaced(ctx), p.id); err != nil && answer == exists {
			return "error: forget: " + err.Error()
		}
	}
	return answer
}

// mounts are those of a root file system, which all containers share.
func (e *Env) mounts() []*types.Mount {
	return []*types.Mount{{Type: "bind", Source: e.rootfs, Options: []string{"rbind", "rw"}}}
}

func (e *Env) start(ctx context.Context, p *place, exec int) string {
	return e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: p.id, ExecID: execID(exec)})
		if err == nil && exec != noExec {
			e.count(func(t *Totals) { t.Execs++ })
			e.mu.Lock()
			p.execs[exec].pid = int(r.GetPid())
			e.mu.Unlock()
		}
		return err
	})
}

func (e *Env) addExec(ctx context.Context, p *place, s Step) string {
	if p.process == nil { // there has never been a container in this place
		p.process = &specs.Process{Cwd: "/"}
	}
	streams, err := e.openStreams(execID(s.Exec), s.Program)
	if err != nil {
		return "error: streams: " + err.Error()
	}
	answer := e.registerExec(ctx, p, execID(s.Exec), s.Program, streams)
	if answer != ok {
		streams.close()
		return answer
	}
	e.mu.Lock()
	former := p.execs[s.Exec].streams
	p.execs[s.Exec] = execPlace{streams: streams}
	e.mu.Unlock()
	former.close()
	return answer
}

func (e *Env) registerExec(ctx context.Context, p *place, id string, program program, streams *streams) string {
	process := *p.process
	process.Args, process.Terminal = program.argv(false), program == terminal
	spec, err := typeurl.MarshalAnyToProto(&process)
	if err != nil {
		return "error: " + err.Error()
	}
	c := streams.config()
	return e.call(ctx, func(ctx context.Context) error {
		_, err := e.client.TaskService().Exec(ctx, &tasks.ExecProcessRequest{
			ContainerID: p.id, ExecID: id, Spec: spec,
			Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Terminal: c.Terminal,
		})
		return err
	})
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

// wait answers with the exit status. The caller knows that the process ends.
func (e *Env) wait(ctx context.Context, id, exec string) string {
	code := uint32(0)
	answer := e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id, ExecID: exec})
		code = r.GetExitStatus()
		return err
	})
	if answer == ok {
		answer = fmt.Sprintf("%s %d", ok, code)
	}
	return answer
}

// remove deletes a container or an exec, and what it had on this side.
func (e *Env) remove(ctx context.Context, p *place, exec int) string {
	code := uint32(0)
	answer := e.call(ctx, func(ctx context.Context) error {
		var r *tasks.DeleteResponse
		var err error
		if exec == noExec {
			r, err = e.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: p.id})
		} else {
			r, err = e.client.TaskService().DeleteProcess(ctx,
				&tasks.DeleteProcessRequest{ContainerID: p.id, ExecID: execID(exec)})
		}
		code = r.GetExitStatus()
		return err
	})
	if answer != ok {
		return answer
	}
	if exec == noExec {
		if err := e.forgetRecord(e.namespaced(ctx), p.id); err != nil {
			return "error: forget: " + err.Error()
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		p.closeStreams()
		return fmt.Sprintf("%s %d", ok, code)
	}
	e.mu.Lock()
	x := p.execs[exec]
	p.execs[exec] = execPlace{}
	e.mu.Unlock()
	if x.pid == 0 {
		x.streams.close()
	} else if err := x.streams.end(uint8(code)); err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprintf("%s %d", ok, code)
}

// clear removes what is in a place, whatever that is.
func (e *Env) clear(ctx context.Context, p *place) string {
	if p.id == "" {
		return ok
	}
	e.order.expectOOM(e.name, p.id, false)
	began := time.Now()
	err := harness.Poll(func() error {
		if ctx.Err() != nil {
			return nil
		}
		switch state := e.state(ctx, p.id, ""); state {
		case notFound:
			return nil
		default:
			_ = e.call(ctx, func(ctx context.Context) error { // it may have ended
				_, err := e.client.TaskService().Kill(ctx,
					&tasks.KillRequest{ContainerID: p.id, Signal: uint32(syscall.SIGKILL), All: true})
				return err
			})
			_, err := e.client.TaskService().Delete(e.namespaced(ctx), &tasks.DeleteTaskRequest{ContainerID: p.id})
			if err = errgrpc.ToNative(err); err == nil || errdefs.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is %s: %w", state, err)
		}
	})
	if err == nil {
		err = e.forgetRecord(e.namespaced(ctx), p.id)
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return fmt.Sprintf("error: not removed after %v: %v", time.Since(began), err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p.closeStreams()
	return ok
}
