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

	"sandbox.internal/shim/integration/harness"
)

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
		fresh = e.state(ctx, p.id, "") == notFound
	}
	if fresh {
		if p.id != "" { // whose shim the fault of this step may have killed just now
			if err := e.forgetRecord(e.namespaced(ctx), p.id); err != nil {
				return "error: forget: " + err.Error()
			}
		}
		e.chooseID(p, s.Reuse)
		e.order.expectOOM(e.name, p.id, s.Program == hungry)
		if err := e.prepare(ctx, p, s); err != nil {
			return "error: " + err.Error()
		}
	}
	answer := e.call(ctx, func(ctx context.Context) error {
		c := p.streams.config()
		r, err := e.client.TaskService().Create(ctx, &tasks.CreateTaskRequest{
			ContainerID: p.id, Rootfs: e.mounts(), Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Terminal: c.Terminal,
		})
		if err == nil && fresh {
			p.pid = int(r.GetPid())
			e.order.began(e.name, p.id, "", p.pid)
		}
		return err
	})
	if answer != ok && fresh {
		p.closeStreams()
		if err := e.forgetRecord(e.namespaced(ctx), p.id); err != nil && answer == exists {
			return "error: forget: " + err.Error()
		}
	}
	return answer
}

// prepare has containerd know the container of a step, and makes its streams.
func (e *Env) prepare(ctx context.Context, p *place, s Step) error {
	process, err := e.record(e.namespaced(ctx), p.id, "", p.options(s)...)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	p.closeStreams()
	e.mu.Lock()
	p.process, p.pid = process, 0
	e.mu.Unlock()
	if p.streams, err = e.openStreams(p.id, s.Program); err != nil {
		return fmt.Errorf("streams: %w", err)
	}
	e.count("containers")
	e.countHostile(s.Program)
	return nil
}

// mounts are those of a root file system, which all containers share.
func (e *Env) mounts() []*types.Mount {
	return []*types.Mount{{Type: "bind", Source: e.rootfs, Options: []string{"rbind", "rw"}}}
}

func (e *Env) start(ctx context.Context, p *place, exec int) string {
	return e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: p.id, ExecID: execID(exec)})
		if err == nil && exec != noExec {
			e.count("execs")
			e.mu.Lock()
			p.execs[exec].pid = int(r.GetPid())
			e.mu.Unlock()
			e.order.began(e.name, p.id, execID(exec), int(r.GetPid()))
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
	e.countHostile(program)
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
		e.order.owe(e.name + "/" + p.id)
		e.mu.Lock()
		defer e.mu.Unlock()
		streams := p.streams
		p.streams = nil
		p.closeStreams()
		if err := streams.end(uint8(code)); err != nil {
			return "error: " + err.Error()
		}
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
			if err == nil {
				e.order.owe(e.name + "/" + p.id)
			}
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
