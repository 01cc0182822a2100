// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// stayer is a bystander: a container that lives as long as the worker, and that no step concerns.
type stayer struct {
	place
	shim int // pid
}

// startStayers starts the bystanders: one with a shim of its own, and two that share one.
func (e *Env) startStayers(ctx context.Context) error {
	for i, opts := range [][]oci.SpecOpts{nil, inGroup("bystanders"), inGroup("bystanders")} {
		s := &stayer{place: place{id: fmt.Sprintf("bystander%d", i)}}
		opts = append(opts, oci.WithProcessArgs(forever.argv(false)...))
		var err error
		if s.process, err = e.record(e.namespaced(ctx), s.id, e.plainRuntime(), opts...); err != nil {
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
			if id := shimID(shim); id == s.id || i == 2 && id == e.stayers[1].id {
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

func inGroup(name string) []oci.SpecOpts {
	return []oci.SpecOpts{oci.WithAnnotations(map[string]string{group: name})}
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

// stayerExecs is how many execs each bystander has at the end of a round, so that what an exec leaves in a shim that
// lives long comes to light.
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
