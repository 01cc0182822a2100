// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// ways are how our shim runs pods; each has its rows. The reference runs them with a pause container, there is no other
// way for it.
var ways = []struct{ handler, name string }{
	{cri.PodSandbox, "pod with a pause container"},
	{cri.Shim, "pod without one"},
}

// Rows of a way.
const (
	rowPodRun       = "RunPodSandbox"
	rowPodContainer = "create and start a container"
	rowPodExec      = "ExecSync of true"
	rowPodStop      = "StopPodSandbox of a pod with a container"
	rowPodRemove    = "RemovePodSandbox"
	rowPodPSS       = "PSS when empty"
	rowPodProcesses = "processes when empty"
	rowPodCgroups   = "cgroups when empty"
	rowPodMounts    = "mounts when empty"
)

func criGroup() group {
	g := group{name: "cri", about: "pods through CRI; not with crun", measure: (*bench).cri}
	for _, way := range ways {
		run, create, memory := target{}, target{}, target{}
		if way.handler == cri.Shim {
			run, create, memory = target{Ratio: 0.60}, target{Ratio: 0.55}, target{Ratio: 0.70}
		}
		for _, r := range []row{
			{Name: rowPodRun, Unit: "ms", Target: run},
			{Name: rowPodContainer, Unit: "ms", Target: create},
			{Name: rowPodExec, Unit: "ms"},
			{Name: rowPodStop, Unit: "ms"},
			{Name: rowPodRemove, Unit: "ms"},
			{Name: rowPodPSS, Unit: "MiB", Target: memory},
			{Name: rowPodProcesses, Unit: "count"},
			{Name: rowPodCgroups, Unit: "count"},
			{Name: rowPodMounts, Unit: "count"},
		} {
			r.Name = way.name + ", " + r.Name
			g.rows = append(g.rows, r)
		}
	}
	return g
}

// node is a containerd with CRI that runs pods by one subject's shim.
type node struct {
	*cri.Daemon
	scope  harness.Scope
	parent string // of the pods' cgroups
}

// podTurn is what a round runs a pod by: a subject, in one of its ways. What it takes stands in the rows of ways.
type podTurn struct {
	column  int
	handler string
	ways    []string
}

// podTurns has each way of this project's shim. The runc shim has one, which stands beside all
// of them. crun has none.
func podTurns(subjects []*subject) []podTurn {
	var turns []podTurn
	for column, s := range subjects {
		if s.name == crun {
			continue
		}
		var all []string
		for _, way := range ways {
			all = append(all, way.name)
			if s.isShim() {
				turns = append(turns, podTurn{column, way.handler, []string{way.name}})
			}
		}
		if !s.isShim() {
			turns = append(turns, podTurn{column, cri.PodSandbox, all})
		}
	}
	return turns
}

// cri runs pods one at a time, so that none shares memory with another: the reference's, and ours in each way. What the
// reference takes stands beside both.
func (b *bench) cri(ctx context.Context) (err error) {
	nodes, turns := map[int]*node{}, podTurns(b.subjects) // by column
	for _, turn := range turns {
		if nodes[turn.column] != nil {
			continue
		}
		s := b.subjects[turn.column]
		n, e := b.startNode(ctx, s)
		if e != nil {
			return fmt.Errorf("%s: %w", s.name, e)
		}
		defer func() { err = errors.Join(err, n.end()) }()
		nodes[turn.column] = n
	}
	// A round takes a second, or the time settle where pods stay empty.
	for round := range idleRounds + max(1, b.settings.Rounds/2) {
		for i := range turns {
			turn := turns[(round+i)%len(turns)]
			add := func(name string, value float64) {
				for _, way := range turn.ways {
					b.add(way+", "+name, turn.column, value)
				}
			}
			figures := (*node).busy
			if round < idleRounds {
				figures = (*node).empty
			}
			err := nodes[turn.column].pod(ctx, turn.handler, b.id("pod"), add, figures)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				return fmt.Errorf("%s, %s, round %d: %w", b.subjects[turn.column].name, turn.handler, round, err)
			}
		}
	}
	return nil
}

// startNode starts containerd with CRI.
func (b *bench) startNode(ctx context.Context, s *subject) (_ *node, err error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	d, err := cri.NewDaemon(harness.Env{
		Runtime: s.runtime, Shim: s.shim, Tools: b.tools, Daemon: filepath.Join(b.tools, "containerd"),
		Busybox: busybox,
	}, b.isolation)
	if err != nil {
		return nil, err
	}
	name := s.host.namespace + "-pods"
	n := &node{Daemon: d, scope: d.Scope(name), parent: "/" + name}
	if err = cri.MakeCgroup(n.parent); err == nil {
		err = d.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, fmt.Errorf("containerd's log:\n%s", d.LogFrom(0)), n.end())
	}
	return n, nil
}

// end ends containerd. Its error names what pods have left behind, which goes, too.
func (n *node) end() error {
	// If containerd could not be started, it does not answer.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(n.RemovePods(ctx), gone(n.scope), n.scope.Remove(), n.Close())
}

// figures of a pod that has just been run, in took ms, when there were mounts. They may remove it.
type figures func(
	n *node, ctx context.Context, p *cri.Pod, took float64, mounts int, add func(name string, value float64),
) error

// pod runs a pod, has the figures taken, and removes it.
func (n *node) pod(
	ctx context.Context, handler, name string, add func(name string, value float64), take figures,
) error {
	// The shim of the pod before may still be ending: nobody waits for that.
	if err := harness.Poll(func() error {
		if left := harness.ShimsOf(n.Address, ""); len(left) > 0 {
			return fmt.Errorf("shims of earlier pods do not end: %v", left)
		}
		return nil
	}); err != nil {
		return err
	}
	mounts, err := mountCount()
	if err != nil {
		return err
	}
	var p *cri.Pod
	took, err := timed(func() (err error) {
		p, err = n.RunPod(ctx, handler, cri.PodConfig(name, n.parent))
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(take(n, ctx, p, took, mounts, add), p.Remove(context.WithoutCancel(ctx)))
}

// busy times what is done with a pod.
func (n *node) busy(ctx context.Context, p *cri.Pod, run float64, _ int, add func(name string, value float64)) error {
	add(rowPodRun, run)
	var container string
	for _, step := range []struct {
		row string
		do  func() error
	}{
		{rowPodContainer, func() (err error) {
			container, err = p.Run(ctx, cri.ContainerConfig("c", "sleep", "1000"))
			return err
		}},
		{rowPodExec, func() error {
			r, err := n.Runtime.ExecSync(ctx,
				&runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: []string{"true"}})
			if err == nil && r.GetExitCode() != 0 {
				err = fmt.Errorf("exec true: exit code %d", r.GetExitCode())
			}
			return err
		}},
		{rowPodStop, func() error { return p.Stop(ctx) }},
		{rowPodRemove, func() error {
			_, err := n.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.ID})
			return err
		}},
	} {
		took, err := timed(step.do)
		if err != nil {
			return fmt.Errorf("%s: %w", step.row, err)
		}
		add(step.row, took)
	}
	return nil
}

// empty takes what a pod needs that has no container and has settled. It is the only one of its node.
func (n *node) empty(
	ctx context.Context, _ *cri.Pod, _ float64, mountsBefore int, add func(name string, value float64),
) error {
	if !pause(ctx, settle) {
		return ctx.Err()
	}
	pids := map[int]bool{}
	for _, p := range append(harness.ShimsOf(n.Address, ""), harness.InCgroup(n.parent)...) {
		pids[p.Pid] = true
	}
	sum, err := pss(slices.Collect(maps.Keys(pids))...)
	if err != nil {
		return err
	}
	mounts, err := mountCount()
	if err != nil {
		return err
	}
	cgroups, err := cgroupCount(n.parent)
	if err != nil {
		return err
	}
	add(rowPodPSS, sum)
	add(rowPodProcesses, float64(len(pids)))
	add(rowPodMounts, float64(mounts-mountsBefore))
	add(rowPodCgroups, float64(cgroups))
	return nil
}

// mountCount counts the mounts of the namespace that bench and containerd share.
func mountCount() (int, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	return strings.Count(string(text), "\n"), err
}

// cgroupCount counts the cgroups below path, in all hierarchies.
func cgroupCount(path string) (n int, err error) {
	roots, err := harness.CgroupRoots()
	for _, root := range roots {
		top := filepath.Join(root, path)
		err = errors.Join(err, filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && name != top {
				n++
			}
			return err
		}))
	}
	return n, err
}
