// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/integration/harness"
)

const (
	rowUpgradeGap     = "upgrade of a shim, time without an answer"
	rowUpgradeGapMost = "upgrade of a shim, time without an answer, 99th percentile"
	rowUpgradeCall    = "upgrade of a shim, the call"
	rowUpgradePSS     = "upgrade of a shim, PSS after ten by that before"
)

// What the shim has that is upgraded, and how often a client asks for a state meanwhile.
const (
	upgradeContainers = 20
	upgradeExecs      = 50
	upgradeAsks       = 200 * time.Microsecond
)

// upgradesOfPSS go before the PSS is taken again.
const upgradesOfPSS = 10

func upgradeGroup() group {
	return group{
		name: "upgrade",
		about: fmt.Sprintf("a shim with %d containers and %d execs becomes another release; this project's alone",
			upgradeContainers, upgradeExecs),
		rows: []row{
			{Name: rowUpgradeGap, Unit: "ms", Target: target{Limit: 25}},
			{Name: rowUpgradeGapMost, Unit: "ms", Target: target{Limit: 100}},
			{Name: rowUpgradeCall, Unit: "ms"},
			{Name: rowUpgradePSS, Unit: "×", Target: target{Limit: 1}},
		},
		measure: (*bench).upgrades,
	}
}

// upgradeRounds is 100 for as many rounds as are the default.
func upgradeRounds(s settings) int { return max(2, s.Rounds*10/3) }

// upgrades measures a shim of its own, of which there are releases.
func (b *bench) upgrades(ctx context.Context) (err error) {
	s := *b.subjects[ours]
	ctx = namespaces.WithNamespace(ctx, s.host.namespace)
	installed, err := harness.InstallIn(filepath.Join(s.host.Dir, b.id("installed")), s.shim)
	if err != nil {
		return err
	}
	s.runtime = installed.Path // containerd takes a path, too
	var all []*container
	defer func() { err = errors.Join(err, removeAll(ctx, all)) }()
	if all, err = s.crowdOfOneShim(ctx, b.id("upgrade")); err != nil {
		return err
	}
	u := upgraded{installed: installed, id: all[0].ID(), subject: &s}
	shim, err := all[0].shim()
	if err != nil {
		return err
	}
	before, err := settledPSS(ctx, shim)
	if err != nil {
		return err
	}
	for range upgradesOfPSS {
		if _, _, err := u.once(ctx); err != nil {
			return err
		}
	}
	after, err := settledPSS(ctx, shim)
	if err != nil {
		return err
	}
	b.add(rowUpgradePSS, ours, after/before)
	var gaps []float64
	for range upgradeRounds(b.settings) {
		gap, took, err := u.once(ctx)
		if err != nil {
			return err
		}
		gaps = append(gaps, gap)
		b.add(rowUpgradeGap, ours, gap)
		b.add(rowUpgradeCall, ours, took)
	}
	slices.Sort(gaps)
	b.add(rowUpgradeGapMost, ours, quantile(gaps, 0.99))
	return nil
}

// settledPSS is that of a shim that has had nothing to do for a while.
func settledPSS(ctx context.Context, shim int) (float64, error) {
	if !pause(ctx, settle) {
		return 0, ctx.Err()
	}
	return rollup(shim, "Pss")
}

// crowdOfOneShim runs containers in one shim, and execs in them.
func (s *subject) crowdOfOneShim(ctx context.Context, id string) (all []*container, err error) {
	together := sleeping(oci.WithAnnotations(map[string]string{"io.containerd.runc.v2.group": id}))
	for i := range upgradeContainers {
		c, err := s.run(ctx, fmt.Sprintf("%s-%d", id, i), together)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	for i := range upgradeExecs {
		c := all[i%upgradeContainers]
		process, err := probe(ctx, c)
		if err != nil {
			return all, err
		}
		process.Args = []string{"/bin/sleep", "86400"}
		p, err := c.task.Exec(ctx, fmt.Sprintf("x%d", i), process, cio.NullIO)
		if err == nil {
			err = p.Start(ctx)
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// upgraded is a shim and what upgrades it.
type upgraded struct {
	*subject
	installed *harness.Installed
	id        string // of a container
}

// once installs a release and upgrades the shim. It returns the longest time between two answers of the shim, and that
// of the call, in milliseconds.
func (u *upgraded) once(ctx context.Context) (gap, took float64, err error) {
	if err := u.installed.Next(); err != nil {
		return 0, 0, err
	}
	conn, err := u.host.dial(ctx, u.id)
	if err != nil {
		return 0, 0, err
	}
	address := conn.RemoteAddr().String()
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // nothing is under way
	service := taskapi.NewTTRPCTaskClient(client)
	ask := func() error { _, err := service.State(ctx, &taskapi.StateRequest{ID: u.id}); return err }
	if err := ask(); err != nil {
		return 0, 0, err
	}
	last := time.Now()
	done := make(chan error, 1)
	go func() { // joined below
		var upgraded bool
		var err error
		took, err = timed(func() (err error) { _, upgraded, err = harness.Upgrade(ctx, address, false); return err })
		if err == nil && !upgraded {
			err = errors.New("the shim was not upgraded")
		}
		done <- err
	}()
	for over := false; !over; {
		select {
		case e := <-done:
			err, over = errors.Join(err, e), true
		default:
		}
		if err == nil {
			err = ask()
		}
		now := time.Now()
		gap, last = max(gap, milliseconds(now.Sub(last))), now
		pause(ctx, upgradeAsks)
	}
	return gap, took, err
}
