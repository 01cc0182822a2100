// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// execsPerTurn is so many that what a shim does after the last one, and is not counted, is little of the CPU time.
const execsPerTurn = 5

// Targets of an exec, and of the CPU time of all that takes part in it but containerd.
var execTarget, costTarget = target{Ratio: 0.30, BelowCrun: true}, target{Ratio: 0.20}

func execGroup() group {
	return execRows("exec", "", "exec of /bin/true", "CPU time of an exec")
}

// podExecGroup is execs in what Kubernetes gives to the containers of a restricted pod.
func podExecGroup() group {
	return execRows("podexec", " as in a pod (default seccomp profile, user 1000, no capabilities)",
		"exec in a pod's container", "CPU time of an exec in a pod's container",
		oci.WithUIDGID(1000, 1000), oci.WithCapabilities(nil), oci.WithNoNewPrivileges, seccomp.WithDefaultProfile())
}

func execRows(name, how, took, cost string, opts ...oci.SpecOpts) group {
	return group{
		name: name, about: "exec of /bin/true" + how,
		rows: []row{{Name: took, Unit: "ms", Target: execTarget}, {Name: cost, Unit: "ms", Target: costTarget}},
		measure: func(b *bench, ctx context.Context) error {
			return b.withIdle(ctx, name, func(idle []*container) error {
				return b.execs(ctx, execKind{took, cost, idle})
			}, opts...)
		},
	}
}

// comparison is the rows of execs of two kinds: under a security module, or limits, and without.
type comparison struct {
	took, cost                    [2]string
	median, fastest, medianOfCost string // by that of the second kind
}

func compare(module string) comparison {
	const exec, cost = "exec", "CPU time of an exec"
	pair := func(what string) [2]string {
		return [...]string{what + " under " + module, what + " without " + module}
	}
	return comparison{
		took: pair(exec), cost: pair(cost),
		median:       exec + ", median under " + module + " by that without",
		fastest:      exec + ", 10th percentile under " + module + " by that without",
		medianOfCost: cost + ", median under " + module + " by that without",
	}
}

// group compares execs in two containers of each subject, of which one has opt.
func (c comparison) group(name, about string, opt oci.SpecOpts, took, cost, median, medianOfCost target) group {
	const unit, times = "ms", "×"
	return group{
		name: name, about: "exec of /bin/true " + about,
		rows: []row{
			{Name: c.took[0], Unit: unit, Target: took},
			{Name: c.took[1], Unit: unit},
			{Name: c.median, Unit: times, Target: median},
			{Name: c.fastest, Unit: times},
			{Name: c.cost[0], Unit: unit, Target: cost},
			{Name: c.cost[1], Unit: unit},
			{Name: c.medianOfCost, Unit: times, Target: medianOfCost},
		},
		measure: func(b *bench, ctx context.Context) error {
			err := b.withIdle(ctx, name, func(under []*container) error {
				return b.withIdle(ctx, "without-"+name, func(without []*container) error {
					return b.execs(ctx, execKind{c.took[0], c.cost[0], under}, execKind{c.took[1], c.cost[1], without})
				})
			}, opt)
			if err != nil {
				return err
			}
			for column := range b.subjects {
				of := func(name string) summary { return summarize(b.report.figure(name).Samples[b.run][column]) }
				under, without := of(c.took[0]), of(c.took[1])
				b.add(c.median, column, under.Median/without.Median)
				b.add(c.fastest, column, under.P10/without.P10)
				b.add(c.medianOfCost, column, of(c.cost[0]).Median/of(c.cost[1]).Median)
			}
			return nil
		},
	}
}

// limitsGroup is execs with limits of all kinds and a verdict, which only our shim has, and execs without. For the
// others both are plain.
func limitsGroup() group {
	return compare("limits").group("limits", "with limits and a verdict, and without, beside plain ones of others",
		oci.WithAnnotations(map[string]string{
			"io.containerd.sandbox.v1/exec-limits": "wall-time=10s,cpu-time=5s,memory=64Mi,pids=32,output=64Ki",
		}), execTarget, costTarget, target{Limit: 1.25}, target{})
}

// confinedGroups is execs under the security module of the kernel: with containerd's default profile of AppArmor, or a
// label of the policy in integration/vm/guest. There is none where nothing confines.
func confinedGroups() []group {
	const policy = "/sys/kernel/security/apparmor"
	module, undo := "SELinux", func() error { return nil }
	opt := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		s.Process.SelinuxLabel = "system_u:system_r:container_t:s0:c1,c2"
		s.Linux.MountLabel = "system_u:object_r:container_file_t:s0:c1,c2"
		return nil
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		if _, err := os.Stat(policy); err != nil {
			return nil
		}
		profile := fmt.Sprintf("shim-bench-%d", os.Getpid())
		module, opt = "AppArmor", apparmor.WithDefaultProfile(profile)
		undo = func() error { return os.WriteFile(filepath.Join(policy, ".remove"), []byte(profile), 0) }
	}
	most := target{Limit: 1.15} // whatever the reference has
	g := compare(module).group("confined", "in a container under "+module+", and in one without", opt, target{}, target{},
		most, most)
	measure := g.measure
	g.measure = func(b *bench, ctx context.Context) error { return errors.Join(measure(b, ctx), undo()) }
	return []group{g}
}

// execKind is execs in containers that exist, by column, and the rows of their time and CPU time.
type execKind struct {
	took, cost string
	idle       []*container
}

// execs times execs of each kind.
func (b *bench) execs(ctx context.Context, kinds ...execKind) error {
	accounts := make([]*account, len(b.subjects))
	probes := make([][]*specs.Process, len(kinds))
	for column, s := range b.subjects {
		ctx := namespaces.WithNamespace(ctx, s.host.namespace)
		var shims []int
		for i, k := range kinds {
			shim, err := k.idle[column].shim()
			if err != nil {
				return err
			}
			process, err := probe(ctx, k.idle[column])
			if err != nil {
				return err
			}
			shims, probes[i] = append(shims, shim), append(probes[i], process)
		}
		var err error
		if accounts[column], err = openAccount(s.host.namespace, shims...); err != nil {
			return err
		}
	}
	return b.turnsOfKinds(ctx, b.settings.Rounds, len(kinds), func(ctx context.Context, column, i int, _ *subject) error {
		before, err := accounts[column].used()
		if err != nil {
			return err
		}
		for range execsPerTurn {
			ms, err := timed(func() error { return execProbe(ctx, kinds[i].idle[column], b.id("exec"), probes[i][column]) })
			if err != nil {
				return err
			}
			b.add(kinds[i].took, column, ms)
		}
		after, err := accounts[column].used()
		if err != nil {
			return err
		}
		b.add(kinds[i].cost, column, milliseconds(after-before)/execsPerTurn)
		return nil
	})
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
