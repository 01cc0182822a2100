// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/cri"
)

// settings say how much is measured. They are in the JSON file, so that figures can be compared.
type settings struct {
	Runs       int           `json:"runs"`
	Rounds     int           `json:"rounds"`
	Containers int           `json:"containers"` // at once
	Dense      int           `json:"dense"`      // pods of the density rows
	Probed     int           `json:"probed"`     // containers of the storm
	Storm      time.Duration `json:"storm"`      // for each runtime
	Idle       time.Duration `json:"idle"`       // of each sample
}

// bench is one run of all groups.
type bench struct {
	settings  settings
	subjects  []*subject
	tools     string         // directory of the programs beside our shim
	isolation *cri.Isolation // in which all runs, for pods
	run       int
	report    *report
	progress  io.Writer
	made      int // containers so far, for their ids; only bench's own goroutine makes ids
}

// measure runs the groups. One that fails does not keep the others from being measured.
func (b *bench) measure(ctx context.Context, groups []group) (err error) {
	for _, g := range groups {
		begin := time.Now()
		e := g.measure(b, ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		outcome := ""
		if e != nil {
			err = errors.Join(err, fmt.Errorf("run %d, %s: %w", b.run+1, g.name, e))
			outcome = ", FAILED"
		}
		fmt.Fprintf(b.progress, "bench: run %d of %d: %s: %.0f s%s\n", b.run+1, b.settings.Runs, g.name,
			time.Since(begin).Seconds(), outcome)
	}
	return err
}

// add takes a sample.
func (b *bench) add(name string, column int, value float64) { b.report.add(name, b.run, column, value) }

// turns calls f for each subject in each round, and begins every round with another one: nobody is always first.
func (b *bench) turns(
	ctx context.Context, rounds int, f func(ctx context.Context, column int, s *subject) error,
) error {
	return b.turnsOfKinds(ctx, rounds, 1, func(ctx context.Context, column, _ int, s *subject) error {
		return f(ctx, column, s)
	})
}

// turnsOfKinds is turns where each subject has a turn of every kind in each round: all of the first kind, then all of
// the second.
func (b *bench) turnsOfKinds(
	ctx context.Context, rounds, kinds int, f func(ctx context.Context, column, kind int, s *subject) error,
) error {
	all := kinds * len(b.subjects)
	for round := range rounds {
		for turn := range all {
			place := (round + turn) % all
			column, kind := place%len(b.subjects), place/len(b.subjects)
			s := b.subjects[column]
			err := f(namespaces.WithNamespace(ctx, s.host.namespace), column, kind, s)
			if ctx.Err() != nil {
				return context.Cause(ctx) // no fault of the runtime's
			} else if err != nil {
				return fmt.Errorf("%s, round %d: %w\n%s", s.name, round, err, s.host.logTail())
			}
		}
	}
	return nil
}

// borrowed reports whether a subject is run by the reference's shim, which then is measured already.
func (b *bench) borrowed(column int) bool {
	return column != reference && b.subjects[column].shim == b.subjects[reference].shim
}

// id is a new container id.
func (b *bench) id(prefix string) string {
	b.made++
	return fmt.Sprintf("%s-%d", prefix, b.made)
}

// timed is the duration of f in milliseconds.
func timed(f func() error) (float64, error) {
	begin := time.Now()
	err := f()
	return milliseconds(time.Since(begin)), err
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// container is a container with its task.
type container struct {
	containerd.Container
	task containerd.Task
}

// create makes a container and its task. The rootfs is a bind mount, which the shim makes, as it does with a snapshot.
func (s *subject) create(ctx context.Context, id string, opts ...containerd.NewContainerOpts) (*container, error) {
	return s.createWith(ctx, id, cio.NullIO, opts...)
}

// createWith is create with other streams.
func (s *subject) createWith(
	ctx context.Context, id string, streams cio.Creator, opts ...containerd.NewContainerOpts,
) (*container, error) {
	rootfs := []mount.Mount{{Type: "bind", Source: s.host.rootfs, Options: []string{"rbind", "rw"}}}
	return s.createOn(ctx, id, streams, rootfs, opts...)
}

// createOn is create on other mounts; without any, the spec names the root.
func (s *subject) createOn(
	ctx context.Context, id string, streams cio.Creator, rootfs []mount.Mount, opts ...containerd.NewContainerOpts,
) (*container, error) {
	opts = append([]containerd.NewContainerOpts{containerd.WithRuntime(s.runtime, s.options)}, opts...)
	c, err := s.host.client.NewContainer(ctx, id, opts...)
	if err != nil {
		return nil, err
	}
	task, err := c.NewTask(ctx, streams, containerd.WithRootFS(rootfs))
	if err != nil {
		return nil, errors.Join(err, c.Delete(ctx))
	}
	return &container{c, task}, nil
}

// spec is that of a container. It says it is of version 1.0 of the specification, which is all that crun 1.8 takes.
func spec(command []string, opts ...oci.SpecOpts) containerd.NewContainerOpts {
	version := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		s.Version = "1.0.2"
		return nil
	}
	return containerd.WithNewSpec(append([]oci.SpecOpts{
		oci.WithDefaultPathEnv, oci.WithProcessArgs(command...),
		version,
	}, opts...)...)
}

// sleeping is the spec of a container that does nothing.
func sleeping(opts ...oci.SpecOpts) containerd.NewContainerOpts {
	return spec([]string{"/bin/sleep", "86400"}, opts...)
}

// withOptions gives a container options that only our shim has.
func (s *subject) withOptions(toml string) containerd.NewContainerOpts {
	return containerd.WithRuntime(s.runtime, &runtimeoptions.Options{TypeUrl: "sandbox", ConfigBody: []byte(toml)})
}

// run starts a container that stays.
func (s *subject) run(ctx context.Context, id string, opts ...containerd.NewContainerOpts) (*container, error) {
	c, err := s.create(ctx, id, opts...)
	return c.started(ctx, err)
}

// started starts a container, unless its creation has failed.
func (c *container) started(ctx context.Context, err error) (*container, error) {
	if err != nil {
		return nil, err
	}
	if err := c.task.Start(ctx); err != nil {
		return nil, errors.Join(err, c.remove(ctx))
	}
	return c, nil
}

// remove kills and deletes the container, also when ctx has ended.
func (c *container) remove(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	_, err := c.task.Delete(ctx, containerd.WithProcessKill)
	return errors.Join(err, c.Delete(ctx))
}

// shim is the pid of the container's shim.
func (c *container) shim() (int, error) { return parent(int(c.task.Pid())) }

// withIdle starts an idle container of each subject, calls f and removes them.
func (b *bench) withIdle(
	ctx context.Context, id string, f func(idle []*container) error, opts ...oci.SpecOpts,
) (err error) {
	var idle []*container
	defer func() {
		for i, c := range idle {
			err = errors.Join(err, c.remove(namespaces.WithNamespace(ctx, b.subjects[i].host.namespace)))
		}
	}()
	for _, s := range b.subjects {
		c, err := s.run(namespaces.WithNamespace(ctx, s.host.namespace), b.id(id), sleeping(opts...))
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", s.name, err, s.host.logTail())
		}
		idle = append(idle, c)
	}
	return f(idle)
}

// pause waits, and returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
