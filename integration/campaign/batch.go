// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// batch runs containers from beginning to end, and tells of one that went wrong if there is one. Each has a shim of its
// own, or all are in the pod of the bystanders, whose shim lives on and must not keep anything of them.
func (e *Env) batch(ctx context.Context, s Step) string {
	pod, opts := "", []oci.SpecOpts(nil)
	if s.Shared {
		pod, opts = e.inPod()
	}
	var answers [lanes]string
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := lane; i < s.Count && answers[lane] == ""; i += lanes {
				answers[lane] = e.containerOnce(ctx, programOf(i), pod, opts...)
			}
		})
	}
	all.Wait()
	return cmp.Or(append(answers[:], ok)...)
}

// programOf is what the one with a number runs, of a burst or a batch: each fourth one fails.
func programOf(i int) program {
	if i%4 == 3 {
		return fails
	}
	return succeeds
}

// containerOnce runs a container that is in no place. It returns what went wrong, and removes what is there then.
func (e *Env) containerOnce(ctx context.Context, program program, pod string, opts ...oci.SpecOpts) string {
	id := e.newID(&place{number: maxContainers}, "b")
	opts = append([]oci.SpecOpts{oci.WithProcessArgs(program.argv(false)...)}, opts...)
	_, err := e.record(e.namespaced(ctx), id, pod, e.plainRuntime(), opts...)
	if err != nil {
		return "error: record: " + err.Error()
	}
	e.count(func(t *Totals) {
		t.Containers++
		if pod != "" {
			t.Pods++
		}
	})
	wrong := e.runOnce(ctx, id, program)
	if wrong != "" {
		wrong = fmt.Sprintf("%s: %s; then its removal: %s", id, wrong, e.clear(ctx, &place{id: id}))
	} else if err := e.forgetRecord(e.namespaced(ctx), id); err != nil {
		wrong = "error: forget: " + err.Error()
	}
	return wrong
}

func (e *Env) runOnce(ctx context.Context, id string, program program) (wrong string) {
	t := e.client.TaskService()
	pid, want := 0, fmt.Sprintf("%s %d", ok, program.codes()[0])
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
	code, began := uint32(0), time.Now()
	answer = e.call(ctx, func(ctx context.Context) error {
		r, err := t.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
		code = r.GetExitStatus()
		return err
	})
	if answer = fmt.Sprintf("%s %d", answer, code); answer != want {
		return fmt.Sprintf("delete: %s, want %s", answer, want)
	}
	e.deleted(ctx, id, time.Since(began))
	return ""
}
