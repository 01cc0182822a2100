// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// stayer is a bystander: a container that lives as long as the worker, and that no step concerns.
type stayer struct {
	place
	shim int // pid
}

// firstInPod is the first container of the bystanders' pod, and the id of that.
const firstInPod = "bystander1"

// startStayers starts the bystanders: one with a shim of its own, and two in a pod.
func (e *Env) startStayers(ctx context.Context) error {
	// As for a pod with a pause container: the id says which shim the others join.
	if _, err := e.client.SandboxStore().Create(e.namespaced(ctx), sandbox.Sandbox{ID: firstInPod}); err != nil {
		return fmt.Errorf("record pod %s: %w", firstInPod, err)
	}
	for i := range 3 {
		s := &stayer{place: place{id: fmt.Sprintf("bystander%d", i)}}
		pod, opts := "", []oci.SpecOpts(nil)
		switch i {
		case 1:
			opts = []oci.SpecOpts{harness.InPod(s.id, harness.PodFirst)}
		case 2:
			pod, opts = e.inPod()
		}
		opts = append(opts, oci.WithProcessArgs(forever.argv(false)...))
		var err error
		if s.process, err = e.record(e.namespaced(ctx), s.id, pod, opts...); err != nil {
			return err
		}
		r, err := e.client.TaskService().Create(e.namespaced(ctx),
			&tasks.CreateTaskRequest{ContainerID: s.id, Rootfs: e.mounts()})
		if err != nil {
			return fmt.Errorf("create %s: %w", s.id, err)
		}
		if answer := e.start(ctx, &s.place, noExec); answer != ok {
			return fmt.Errorf("start %s: %s", s.id, answer)
		}
		s.pid = int(r.GetPid())
		for _, shim := range e.allShims() {
			if id := shimID(shim); id == s.id || i == 2 && id == firstInPod {
				s.shim = shim.Pid
			}
		}
		if s.shim == 0 {
			return fmt.Errorf("no shim of %s", s.id)
		}
		e.stayers = append(e.stayers, s)
	}
	return nil
}

// inPod is the pod of the bystanders, which batches may be in too, and what a container in it has.
func (e *Env) inPod() (pod string, opts []oci.SpecOpts) {
	first := e.stayers[1]
	return first.id, append(harness.Sharing(first.pid), harness.InPod(first.id, harness.PodOther))
}

// stays reports whether a container of the events is a bystander.
func (e *Env) stays(key string) bool {
	for _, s := range e.stayers {
		if key == e.name+"/"+s.id {
			return true
		}
	}
	return false
}

// stayerExecs is how many execs each bystander has after a round: what they leave in its shim comes to light.
const stayerExecs = 10

// harmed lists what is wrong with the bystanders.
func (e *Env) harmed(ctx context.Context) []Violation {
	var list []Violation
	add := func(s *stayer, format string, args ...any) {
		list = append(list, Violation{Kind: Harmed, Text: s.id + ": " + fmt.Sprintf(format, args...)})
	}
	for _, s := range e.stayers {
		if state := e.state(ctx, s.id, ""); state != running.String() {
			add(s, "it is %s", state)
			continue
		}
		if err := syscall.Kill(s.pid, 0); err != nil {
			add(s, "its process %d: %v", s.pid, err)
			continue
		}
		if err := syscall.Kill(s.shim, 0); err != nil {
			add(s, "its shim %d: %v", s.shim, err)
			continue
		}
		if answer := e.burst(ctx, &s.place, stayerExecs); answer != ok {
			add(s, "an exec in it: %s", answer)
		}
		if answer := e.stats(ctx, s.id); answer != metrics {
			add(s, "its metrics: %s", answer)
		}
	}
	return list
}
