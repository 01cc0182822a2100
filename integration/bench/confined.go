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
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// confinement is what a security module of the kernel confines a container with.
type confinement struct {
	module string
	opt    oci.SpecOpts
	undo   func() error
}

// confined is the most that an exec may take in a container that is confined, as a multiple of one in another. The
// ratio of such a row to the reference's says how far that of the execs under a module differs from that of the others.
const confined = 1.15

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

func (c comparison) rows() []row {
	const unit, times = "ms", "×"
	most := target{Limit: confined}
	return []row{
		{Name: c.took[0], Unit: unit},
		{Name: c.took[1], Unit: unit},
		{Name: c.median, Unit: times, Target: most},
		{Name: c.fastest, Unit: times},
		{Name: c.cost[0], Unit: unit},
		{Name: c.cost[1], Unit: unit},
		{Name: c.medianOfCost, Unit: times, Target: most},
	}
}

// confinedGroups is the group that compares execs in two containers of each subject, one that is confined and one that
// is not. There is none where nothing confines.
func confinedGroups() []group {
	with, ok := findConfinement()
	if !ok {
		return nil
	}
	c := compare(with.module)
	return []group{{
		name: "confined", about: "exec of /bin/true in a container under " + with.module + ", and in one without",
		rows: c.rows(),
		measure: func(b *bench, ctx context.Context) error {
			err := b.withIdle(ctx, "confined", func(under []*container) error {
				return b.withIdle(ctx, "unconfined", func(without []*container) error {
					return b.compareExecs(ctx, c, [2][]*container{under, without})
				})
			}, with.opt)
			return errors.Join(err, with.undo())
		},
	}}
}

// findConfinement is the default profile of containerd, or a label of the policy in integration/vm/guest.
func findConfinement() (confinement, bool) {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		label := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
			s.Process.SelinuxLabel = "system_u:system_r:container_t:s0:c1,c2"
			s.Linux.MountLabel = "system_u:object_r:container_file_t:s0:c1,c2"
			return nil
		}
		return confinement{"SELinux", label, func() error { return nil }}, true
	}
	const policy = "/sys/kernel/security/apparmor"
	if _, err := os.Stat(policy); err != nil {
		return confinement{}, false
	}
	profile := fmt.Sprintf("shim-bench-%d", os.Getpid())
	return confinement{"AppArmor", apparmor.WithDefaultProfile(profile), func() error {
		return os.WriteFile(filepath.Join(policy, ".remove"), []byte(profile), 0)
	}}, true
}

// compareExecs times execs in the containers of each kind, which are listed by column.
func (b *bench) compareExecs(ctx context.Context, c comparison, idle [2][]*container) error {
	accounts := make([]*account, len(b.subjects))
	var probes [2][]*specs.Process
	for column, s := range b.subjects {
		ctx := namespaces.WithNamespace(ctx, s.host.namespace)
		var shims []int
		for kind, all := range idle {
			shim, err := all[column].shim()
			if err != nil {
				return err
			}
			process, err := probe(ctx, all[column])
			if err != nil {
				return err
			}
			shims, probes[kind] = append(shims, shim), append(probes[kind], process)
		}
		var err error
		if accounts[column], err = openAccount(s.host.namespace, shims...); err != nil {
			return err
		}
	}
	err := b.turnsOfKinds(ctx, b.settings.Rounds, len(idle),
		func(ctx context.Context, column, kind int, _ *subject) error {
			return b.execTurn(ctx, column, idle[kind][column], probes[kind][column], accounts[column],
				c.took[kind], c.cost[kind])
		})
	if err != nil {
		return err
	}
	for column := range b.subjects {
		of := func(name string) summary { return summarize(b.report.samples(name, b.run, column)) }
		under, without := of(c.took[0]), of(c.took[1])
		b.add(c.median, column, under.Median/without.Median)
		b.add(c.fastest, column, under.P10/without.P10)
		b.add(c.medianOfCost, column, of(c.cost[0]).Median/of(c.cost[1]).Median)
	}
	return nil
}
