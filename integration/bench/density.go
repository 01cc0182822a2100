// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// Rows of pods of which many share a shim of ours. The runc shim has one for each.
const (
	rowDenseContainers = "containers, private memory of their shims, each"
	rowDensePaused     = "pods with a pause container, private memory of their shims, each"
	rowDensePods       = "pods without one, private memory of their shims and holders, each"
	rowDenseIdle       = "pods with a pause container that idle, polled by CRI, CPU time of their shims"
	rowDenseLife       = "/bin/true in a shared shim, from nothing to deleted"
	rowDensePod        = "RunPodSandbox and a first container, in a shared shim"
	rowDenseStart      = "the start command where the shim lives"
	rowDenseCreate     = "create in a shim with all of the containers, by create in one with one"
	rowDenseExec       = "exec of /bin/true, the same"
	rowDenseDelete     = "delete, the same"
)

// denseSettle is longer than a shim that is quiet keeps memory (pkg/idle).
const denseSettle = 25 * time.Second

// perShim is the option PodsPerShim of these rows.
const perShim = 50

func densityGroup() group {
	return group{
		name: "density", about: "many pods and containers, of which 50 share a shim of ours; not with crun",
		rows: []row{
			{Name: rowDenseContainers, Unit: "MiB", Target: target{Ratio: 0.03}},
			{Name: rowDensePaused, Unit: "MiB", Target: target{Ratio: 0.04}},
			{Name: rowDensePods, Unit: "MiB", Target: target{Ratio: 0.04}},
			{Name: rowDenseIdle, Unit: "ms/s", Target: target{Ratio: 0.30}},
			{Name: rowDenseLife, Unit: "ms", Target: target{Ratio: 0.20}},
			{Name: rowDensePod, Unit: "ms", Target: target{Ratio: 0.20}},
			{Name: rowDenseStart, Unit: "ms", Target: target{Ratio: 0.20}},
			{Name: rowDenseCreate, Unit: "×", Target: target{Limit: 1.1}},
			{Name: rowDenseExec, Unit: "×", Target: target{Limit: 1.1}},
			{Name: rowDenseDelete, Unit: "×", Target: target{Limit: 1.1}},
		},
		measure: func(b *bench, ctx context.Context) error {
			return errors.Join(b.denseContainers(ctx), b.denseScale(ctx), b.densePods(ctx))
		},
	}
}

// sharing is a container of which many share a shim of ours.
func (s *subject) sharing(spec containerd.NewContainerOpts) []containerd.NewContainerOpts {
	return s.sharingOf(perShim, spec)
}

func (s *subject) sharingOf(most int, spec containerd.NewContainerOpts) []containerd.NewContainerOpts {
	if !s.isShim() {
		return []containerd.NewContainerOpts{spec}
	}
	return []containerd.NewContainerOpts{spec, s.withOptions(fmt.Sprintf("PodsPerShim = %d\n", most))}
}

// denseContainers starts many containers, and then times single ones beside them.
func (b *bench) denseContainers(ctx context.Context) error {
	return b.turns(ctx, 1, func(ctx context.Context, column int, s *subject) (err error) {
		if b.borrowed(column) {
			return nil
		}
		var all []*container
		defer func() { err = errors.Join(err, removeAll(ctx, all)) }()
		for range b.settings.Dense {
			c, err := s.run(ctx, b.id("dense"), s.sharing(sleeping())...)
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		if !pause(ctx, denseSettle) {
			return ctx.Err()
		}
		var shims []int
		for _, p := range harness.Shims(s.host.namespace, "") {
			shims = append(shims, p.Pid)
		}
		sum, err := private(shims...)
		if err != nil {
			return err
		}
		b.add(rowDenseContainers, column, sum/float64(len(all)))
		last := all[len(all)-1] // of a shim that may be full, which has room then
		all = all[:len(all)-1]
		return errors.Join(last.remove(ctx), b.beside(ctx, column, s), b.startBeside(ctx, column, s))
	})
}

// beside times containers in a shim that has many.
func (b *bench) beside(ctx context.Context, column int, s *subject) error {
	for range b.settings.Rounds {
		begin := time.Now()
		c, err := s.create(ctx, b.id("beside"), s.sharing(spec([]string{"/bin/true"}))...)
		if err != nil {
			return err
		}
		exited, err := c.task.Wait(ctx)
		if err == nil {
			err = c.task.Start(ctx)
		}
		if err == nil {
			err = succeeded(<-exited)
		}
		if err = errors.Join(err, c.remove(ctx)); err != nil {
			return err
		}
		b.add(rowDenseLife, column, milliseconds(time.Since(begin)))
	}
	return nil
}

// denseScale times single containers in a shim that has one, and in one that has all, in turns.
func (b *bench) denseScale(ctx context.Context) error {
	rows := []string{rowDenseCreate, rowDenseExec, rowDenseDelete}
	return b.turns(ctx, 1, func(ctx context.Context, column int, s *subject) (err error) {
		if !s.isShim() {
			return nil
		}
		var all []*container
		defer func() { err = errors.Join(err, removeAll(ctx, all)) }()
		sizes := []int{b.settings.Dense + 1, b.settings.Dense + 2} // PodsPerShim, so that there are two shims
		for size, n := range []int{1, b.settings.Dense} {
			for range n {
				c, err := s.run(ctx, b.id("scale"), s.sharingOf(sizes[size], sleeping())...)
				if err != nil {
					return err
				}
				all = append(all, c)
			}
		}
		var took [2][3][]float64
		for range b.settings.Rounds {
			for size := range sizes {
				times, err := b.phases(ctx, s, s.sharingOf(sizes[size], sleeping())...)
				if err != nil {
					return err
				}
				for i, t := range times {
					took[size][i] = append(took[size][i], t)
				}
			}
		}
		for i, name := range rows {
			b.add(name, column, summarize(took[1][i]).Median/summarize(took[0][i]).Median)
		}
		return nil
	})
}

// phases times the creation of a container, an exec in it and its end.
func (b *bench) phases(
	ctx context.Context, s *subject, opts ...containerd.NewContainerOpts,
) (took [3]float64, err error) {
	var c *container
	took[0], err = timed(func() (err error) { c, err = s.run(ctx, b.id("phase"), opts...); return err })
	if err != nil {
		return took, err
	}
	process, err := probe(ctx, c)
	if err == nil {
		took[1], err = timed(func() error { return execProbe(ctx, c, b.id("exec"), process) })
	}
	if err != nil {
		return took, errors.Join(err, c.remove(ctx))
	}
	took[2], err = timed(func() error { return c.remove(ctx) })
	return took, err
}

// startBeside times the start command where a shim takes the container.
func (b *bench) startBeside(ctx context.Context, column int, s *subject) error {
	var options []*anypb.Any
	if s.isShim() {
		body := fmt.Appendf(nil, "PodsPerShim = %d\n", perShim)
		a, err := anypb.New(&runtimeoptions.Options{TypeUrl: "sandbox", ConfigBody: body})
		if err != nil {
			return err
		}
		options = append(options, a)
	}
	return s.host.startCommand(ctx, s, b.id("start"), func(_ float64, home shimOf) error {
		for range b.settings.Rounds {
			err := s.host.startCommand(ctx, s, b.id("start"), func(took float64, shim shimOf) error {
				b.add(rowDenseStart, column, took)
				return shim.shutdown(ctx, shim.socket != home.socket)
			}, options...)
			if err != nil {
				return err
			}
		}
		return home.shutdown(ctx, true)
	}, options...)
}

// densePods does with pods what denseContainers does with containers.
func (b *bench) densePods(ctx context.Context) (err error) {
	for _, turn := range podTurns(b.subjects) {
		if err := b.dense(ctx, turn); err != nil {
			return fmt.Errorf("%s, %s: %w", b.subjects[turn.column].name, turn.handler, err)
		}
	}
	return nil
}

func (b *bench) dense(ctx context.Context, turn podTurn) (err error) {
	s := b.subjects[turn.column]
	if s.isShim() {
		const variable = "SHIM_TEST_PODS_PER_SHIM" // of harness.PodsPerShim
		if err := os.Setenv(variable, fmt.Sprint(perShim)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.Unsetenv(variable)) }()
	}
	n, err := b.startNode(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.end()) }()
	run := func(name string) (*cri.Pod, error) {
		p, err := n.RunPod(ctx, turn.handler, cri.PodConfig(name, n.parent))
		if err == nil {
			_, err = p.Run(ctx, cri.ContainerConfig("c", "sleep", "86400"))
		}
		return p, err
	}
	var last *cri.Pod
	for range b.settings.Dense {
		if last, err = run(b.id("dense")); err != nil {
			return err
		}
	}
	if !pause(ctx, denseSettle) {
		return ctx.Err()
	}
	if err := b.denseMemory(n, turn, s); err != nil || turn.handler != cri.PodSandbox {
		return err
	}
	used, err := b.usedWhile(ctx, n)
	if err != nil {
		return err
	}
	b.add(rowDenseIdle, turn.column, used)
	if err := last.Remove(ctx); err != nil { // its shim may be full, and has room then
		return err
	}
	for range max(1, b.settings.Rounds/2) {
		var p *cri.Pod
		took, err := timed(func() (err error) { p, err = run(b.id("beside")); return err })
		if err != nil {
			return err
		}
		b.add(rowDensePod, turn.column, took)
		if err := p.Remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// denseMemory takes the memory of the shims of a node, and of the holders of pods.
func (b *bench) denseMemory(n *node, turn podTurn, s *subject) error {
	var all []int
	for _, p := range harness.ShimsOf(n.Address, "") {
		all = append(all, p.Pid)
		for _, holder := range harness.Holders(p.Pid) {
			all = append(all, holder.Pid)
		}
	}
	sum, err := private(all...)
	if err != nil {
		return err
	}
	each := sum / float64(b.settings.Dense)
	if turn.handler == cri.PodSandbox {
		b.add(rowDensePaused, turn.column, each)
	}
	if turn.handler == cri.Shim || !s.isShim() { // what the reference takes stands beside both
		b.add(rowDensePods, turn.column, each)
	}
	return nil
}

// usedWhile returns the CPU time that the shims of a node use, in milliseconds for each second.
func (b *bench) usedWhile(ctx context.Context, n *node) (float64, error) {
	var used [2]time.Duration
	for i := range used {
		if i > 0 && !pause(ctx, b.settings.Idle) {
			return 0, ctx.Err()
		}
		for _, shim := range harness.ShimsOf(n.Address, "") {
			one, err := cpuTime(shim.Pid)
			if err != nil {
				return 0, err
			}
			used[i] += one
		}
	}
	return milliseconds(used[1]-used[0]) / b.settings.Idle.Seconds(), nil
}

// private adds up the anonymous memory of processes, in MiB.
func private(pids ...int) (sum float64, err error) {
	for _, pid := range pids {
		mib, e := rollup(pid, "Anonymous")
		sum, err = sum+mib, errors.Join(err, e)
	}
	return sum, err
}
