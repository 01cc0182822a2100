// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// each calls f for each number, some at the same time, and returns the first answer that is not ok. After such an
// answer some are left out.
func each(count int, f func(i int) string) string {
	const lanes = 3
	var answers [lanes]string
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			answers[lane] = ok
			for i := lane; i < count && answers[lane] == ok; i += lanes {
				answers[lane] = f(i)
			}
		})
	}
	all.Wait()
	for _, answer := range answers {
		if answer != ok {
			return answer
		}
	}
	return ok
}

// programOf is what the one with a number runs, of a burst or a batch: each fourth one fails.
func programOf(i int) program {
	if i%4 == 3 {
		return fails
	}
	return succeeds
}

// burst runs execs from beginning to end.
func (e *Env) burst(ctx context.Context, p *place, count int) string {
	if p.process == nil {
		return notFound
	}
	return each(count, func(i int) string {
		id, program := fmt.Sprintf("b%d", i), programOf(i)
		pid, answer := e.startOnce(ctx, p, id, program)
		if pid == 0 && answer != ok {
			return answer
		}
		return e.endOnce(ctx, p, id, pid, answer, program.ended())
	})
}

// ended is the answer of a wait for the program.
func (p program) ended() string { return fmt.Sprintf("%s %d", ok, behaviours[p].codes[0]) }

// startOnce adds and starts an exec that is in no place. The pid is -1 if it was added and could not be started.
func (e *Env) startOnce(ctx context.Context, p *place, id string, program program) (pid int, answer string) {
	if answer := e.registerExec(ctx, p, id, program, nil); answer != ok {
		return 0, answer
	}
	answer = e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: p.id, ExecID: id})
		pid = int(r.GetPid())
		return err
	})
	if answer != ok {
		return -1, answer
	}
	e.order.began(e.name, p.id, id, pid)
	e.count("execs")
	return pid, ok
}

// endOnce waits for an exec that has been started, and deletes it in any case.
func (e *Env) endOnce(ctx context.Context, p *place, id string, pid int, answer, want string) string {
	if pid > 0 {
		answer = e.wait(ctx, p.id, id, pid)
	}
	deleted := e.call(ctx, func(ctx context.Context) error {
		_, err := e.client.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: p.id, ExecID: id})
		return err
	})
	switch answer {
	case want:
		return deleted
	case fmt.Sprintf("%s %d", ok, killed):
		return killedMeanwhile
	}
	return answer
}

// batch runs containers from beginning to end. Each has a shim of its own, or all are in the pod of the bystanders,
// whose shim lives on and must not keep anything of them.
func (e *Env) batch(ctx context.Context, s Step) string {
	pod, opts := "", []oci.SpecOpts(nil)
	if s.Shared {
		pod, opts = e.inPod()
	}
	return each(s.Count, func(i int) string {
		id, program := e.newID(&place{number: maxContainers}, "b"), programOf(i)
		opts := append([]oci.SpecOpts{oci.WithProcessArgs(program.argv(false)...)}, opts...)
		if _, err := e.record(e.namespaced(ctx), id, pod, opts...); err != nil {
			return "error: record: " + err.Error()
		}
		e.count("containers")
		if pod != "" {
			e.count("containers in pods")
		}
		if wrong := e.containerOnce(ctx, id, program.ended()); wrong != "" {
			return fmt.Sprintf("%s: %s; then its removal: %s", id, wrong, e.clear(ctx, &place{id: id}))
		}
		if err := e.forgetRecord(e.namespaced(ctx), id); err != nil {
			return "error: forget: " + err.Error()
		}
		return ok
	})
}

// containerOnce returns what went wrong with a container that is in no place.
func (e *Env) containerOnce(ctx context.Context, id, want string) (wrong string) {
	t := e.client.TaskService()
	pid := 0
	answer := e.call(ctx, func(ctx context.Context) error {
		r, err := t.Create(ctx, &tasks.CreateTaskRequest{ContainerID: id, Rootfs: e.mounts()})
		pid = int(r.GetPid())
		return err
	})
	if answer != ok {
		return "create: " + answer
	}
	e.order.began(e.name, id, "", pid)
	answer = e.call(ctx, func(ctx context.Context) error {
		_, err := t.Start(ctx, &tasks.StartRequest{ContainerID: id})
		return err
	})
	if answer != ok {
		return "start: " + answer
	}
	if answer := e.wait(ctx, id, "", pid); answer != want {
		return fmt.Sprintf("wait: %s, want %s", answer, want)
	}
	code := uint32(0)
	answer = e.call(ctx, func(ctx context.Context) error {
		r, err := t.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
		code = r.GetExitStatus()
		return err
	})
	if answer = fmt.Sprintf("%s %d", answer, code); answer != want {
		return fmt.Sprintf("delete: %s, want %s", answer, want)
	}
	e.order.owe(e.name + "/" + id)
	return ""
}
