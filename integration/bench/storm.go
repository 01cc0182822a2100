// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/runtime-spec/specs-go"
)

const (
	rowStorm        = "exec storm, CPU time of shims and probes"
	rowStormDaemon  = "exec storm, CPU time of containerd"
	rowStormLatency = "exec storm, a probe"
	rowStormLate    = "exec storm, probes left out as the former was not done"
)

// probeEvery is how often each container is probed. stormTurns is into how many turns each subject's time is cut.
const (
	probeEvery = time.Second
	stormTurns = 6
)

func stormGroup() group {
	return group{
		name: "storm", about: "an exec each second in every one of -probes containers, for -storm",
		rows: []row{
			{Name: rowStorm, Unit: "ms/s", Target: target{Ratio: 0.25}},
			{Name: rowStormDaemon, Unit: "ms/s"},
			{Name: rowStormLatency, Unit: "ms"},
			{Name: rowStormLate, Unit: "/s"},
		},
		measure: (*bench).storms,
	}
}

// victim is a container that is probed.
type victim struct {
	*container
	probe *specs.Process
}

// storms makes the containers of all subjects and probes those of one at a time, in turns. The shims of the others are
// idle then; what that costs is not in the account.
func (b *bench) storms(ctx context.Context) (err error) {
	victims := make([][]victim, len(b.subjects))
	accounts := make([]*account, len(b.subjects))
	for i, s := range b.subjects {
		ctx := namespaces.WithNamespace(ctx, s.host.namespace)
		all, err := b.many(ctx, s, b.settings.Probed)
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", s.name, err, s.host.logTail())
		}
		defer func() { err = errors.Join(err, removeAll(ctx, all)) }()
		var shims []int
		for _, c := range all {
			shim, err := c.shim()
			if err != nil {
				return err
			}
			shims = append(shims, shim)
			p, err := probe(ctx, c)
			if err != nil {
				return err
			}
			victims[i] = append(victims[i], victim{c, p})
		}
		if accounts[i], err = openAccount(s.host.namespace, shims...); err != nil {
			return err
		}
	}
	length := max(b.settings.Storm/stormTurns, probeEvery)
	if !pause(ctx, settle) {
		return ctx.Err()
	}
	return b.turns(ctx, stormTurns, func(ctx context.Context, column int, s *subject) error {
		return b.storm(ctx, column, s, accounts[column], victims[column], length)
	})
}

// storm probes the containers of one subject for a while. It ends when every probe has, so all of them are counted.
func (b *bench) storm(
	ctx context.Context, column int, s *subject, a *account, victims []victim, length time.Duration,
) error {
	daemon := s.host.Pid()
	cpu, err := a.used()
	if err != nil {
		return err
	}
	daemonCPU, err := cpuTime(daemon)
	if err != nil {
		return err
	}
	results := make([]probed, len(victims))
	begin := time.Now()
	var wg sync.WaitGroup
	for i, v := range victims {
		id := b.id("storm")
		first := begin.Add(probeEvery * time.Duration(i) / time.Duration(len(victims))) // spread, as kubelet does
		wg.Go(func() { results[i] = v.every(ctx, id, first, int(length/probeEvery)) })
	}
	wg.Wait()
	after, err := a.used()
	if err != nil {
		return err
	}
	daemonAfter, err := cpuTime(daemon)
	if err != nil {
		return err
	}
	late := 0
	for _, r := range results {
		if r.err != nil {
			return r.err
		}
		late += r.late
		for _, ms := range r.took {
			b.add(rowStormLatency, column, ms)
		}
	}
	b.add(rowStorm, column, milliseconds(after-cpu)/length.Seconds())
	b.add(rowStormDaemon, column, milliseconds(daemonAfter-daemonCPU)/length.Seconds())
	b.add(rowStormLate, column, float64(late)/length.Seconds())
	return nil
}

// probed is what became of the probes of one container.
type probed struct {
	took []float64 // milliseconds
	late int
	err  error
}

// every probes once for each period, n times; a period whose time has passed when the former probe is done is left out.
func (v victim) every(ctx context.Context, id string, first time.Time, n int) (r probed) {
	for i := range n {
		begin := first.Add(time.Duration(i) * probeEvery)
		if time.Since(begin) > probeEvery {
			r.late++
			continue
		}
		if !pause(ctx, time.Until(begin)) {
			r.err = ctx.Err()
			return r
		}
		ms, err := timed(func() error { return execProbe(ctx, v.container, fmt.Sprintf("%s-%d", id, i), v.probe) })
		if err != nil {
			r.err = err
			return r
		}
		r.took = append(r.took, ms)
	}
	return r
}
