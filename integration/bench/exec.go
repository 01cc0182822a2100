// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// execsPerTurn is so many that what a shim does after the last one, and is not counted, is little of the CPU time.
const execsPerTurn = 5

func execGroup() group {
	return execRows("exec", "", "exec of /bin/true", "CPU time of an exec")
}

func podExecGroup() group {
	return execRows("podexec", " as in a pod (default seccomp profile, user 1000, no capabilities)",
		"exec in a pod's container", "CPU time of an exec in a pod's container", podLike()...)
}

// withLimits is the most that an exec with limits and a verdict may take, as a multiple of one without.
const withLimits = 1.25

// limitsGroup is execs with limits of all kinds and a verdict, which only our shim has, and execs without. For the
// others both are plain.
func limitsGroup() group {
	c := compare("limits")
	rows := c.rows()
	rows[0].Target = target{Ratio: 0.30, BelowCrun: true}
	rows[2].Target = target{Limit: withLimits}
	rows[4].Target = target{Ratio: 0.20}
	rows[6].Target = target{}
	return group{
		name: "limits", about: "exec of /bin/true with limits and a verdict, and without, beside plain ones of others",
		rows: rows,
		measure: func(b *bench, ctx context.Context) error {
			return b.withIdle(ctx, "limits", func(under []*container) error {
				return b.withIdle(ctx, "unlimited", func(without []*container) error {
					return b.compareExecs(ctx, c, [2][]*container{under, without})
				})
			}, oci.WithAnnotations(map[string]string{
				"io.containerd.sandbox.v1/exec-limits": "wall-time=10s,cpu-time=5s,memory=64Mi,pids=32,output=64Ki",
			}))
		},
	}
}

// execRows are the time of an exec and the CPU time of all that takes part but containerd.
func execRows(name, how, took, cost string, opts ...oci.SpecOpts) group {
	return group{
		name: name, about: "exec of /bin/true" + how,
		rows: []row{
			{Name: took, Unit: "ms", Target: target{Ratio: 0.30, BelowCrun: true}},
			{Name: cost, Unit: "ms", Target: target{Ratio: 0.20}},
		},
		measure: func(b *bench, ctx context.Context) error {
			return b.withIdle(ctx, name, func(idle []*container) error { return b.execs(ctx, idle, took, cost) },
				opts...)
		},
	}
}

// podLike is what Kubernetes gives to the containers of a restricted pod.
func podLike() []oci.SpecOpts {
	return []oci.SpecOpts{
		oci.WithUIDGID(1000, 1000), oci.WithCapabilities(nil), oci.WithNoNewPrivileges,
		seccomp.WithDefaultProfile(),
	}
}

// execs times execs in containers that exist.
func (b *bench) execs(ctx context.Context, idle []*container, took, cost string) (err error) {
	accounts := make([]*account, len(idle))
	probes := make([]*specs.Process, len(idle))
	for i, c := range idle {
		shim, err := c.shim()
		if err != nil {
			return err
		}
		if accounts[i], err = openAccount(b.subjects[i].host.namespace, shim); err != nil {
			return err
		}
		if probes[i], err = probe(ctx, c); err != nil {
			return err
		}
	}
	return b.turns(ctx, b.settings.Rounds, func(ctx context.Context, column int, _ *subject) error {
		return b.execTurn(ctx, column, idle[column], probes[column], accounts[column], took, cost)
	})
}

// execTurn times a few execs in a container, and takes their CPU time from the account.
func (b *bench) execTurn(
	ctx context.Context, column int, c *container, process *specs.Process, a *account, took, cost string,
) error {
	before, err := a.used()
	if err != nil {
		return err
	}
	for range execsPerTurn {
		ms, err := timed(func() error { return execProbe(ctx, c, b.id("exec"), process) })
		if err != nil {
			return err
		}
		b.add(took, column, ms)
	}
	after, err := a.used()
	if err != nil {
		return err
	}
	b.add(cost, column, milliseconds(after-before)/execsPerTurn)
	return nil
}

// probe is an exec of /bin/true that has all else of the container's own process.
func probe(ctx context.Context, c *container) (*specs.Process, error) {
	s, err := c.Spec(ctx)
	if err != nil {
		return nil, err
	}
	process := *s.Process
	process.Args = []string{"/bin/true"}
	return &process, nil
}

// execProbe runs a process in a container and deletes it.
func execProbe(ctx context.Context, c *container, id string, process *specs.Process) error {
	p, err := c.task.Exec(ctx, id, process, cio.NullIO)
	if err != nil {
		return err
	}
	exited, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return err
	}
	if err := succeeded(<-exited); err != nil {
		return err
	}
	_, err = p.Delete(ctx)
	return err
}
