// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

const podNamespace = "k8s.io" // of CRI

// pod runs a pod from beginning to end, its containers at the same time. After a fault that kills something of it,
// calls may fail; it must go all the same when it is removed.
func (e *Env) pod(ctx context.Context, s Step) string {
	ctx, cancel := context.WithTimeout(ctx, 3*callLimit)
	defer cancel()
	fatal := s.Fault != nil && s.Fault.For == 0 && s.Fault.Kind != UpgradeShim
	before := e.allShims()
	if fatal && s.Fault.Kind == KillShim {
		e.order.excuseAll(podNamespace, true)
		defer e.order.excuseAll(podNamespace, false)
	}
	faultDone := make(chan struct{})
	var hit []harness.Proc
	upgraded := ok
	go func() { // joined below
		defer close(faultDone)
		if s.Fault != nil {
			hit, upgraded = e.podFault(ctx, *s.Fault, before)
		}
	}()
	err := e.podLife(ctx, s)
	<-faultDone
	if upgraded != ok {
		err = errors.Join(err, errors.New(upgraded))
	}
	if fatal && err != nil {
		if strings.Contains(err.Error(), "start failed") {
			for _, shim := range hit {
				e.removeSocket(podNamespace, shimID(shim))
			}
		}
		err = nil
	}
	remove := func() error {
		if ctx.Err() != nil {
			return nil
		}
		return e.daemon.RemovePods(ctx)
	}
	if e := harness.PollFor(harness.Slow(30*time.Second), remove); e != nil {
		err = errors.Join(err, fmt.Errorf("remove the pod: %w", e))
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return ok
}

// podFault sends a signal to the shim of a pod, which is one that was not there before, or to one of its processes, or
// upgrades the shim. It returns the shims of the pod, and what came of the upgrade.
func (e *Env) podFault(ctx context.Context, f Fault, before []harness.Proc) ([]harness.Proc, string) {
	select {
	case <-time.After(f.After):
	case <-ctx.Done():
		return nil, ok
	}
	shims := slices.DeleteFunc(e.allShims(), func(shim harness.Proc) bool {
		return slices.ContainsFunc(before, func(p harness.Proc) bool { return p.Pid == shim.Pid })
	})
	var fds []int
	switch f.Kind {
	case UpgradeShim:
		return shims, e.upgradeAmong(ctx, "", func(shim harness.Proc) bool {
			return slices.ContainsFunc(shims, func(p harness.Proc) bool { return p.Pid == shim.Pid })
		})
	case KillInit:
		if all := harness.InCgroup(e.podParent()); len(all) > 0 {
			fds = append(fds, e.contained(all[len(all)-1].Pid))
		}
	case StopContainerd:
		fds = append(fds, open(e.daemon.Pid(), func() bool { return true }))
	case KillHolder:
		for _, shim := range shims {
			for _, holder := range harness.Holders(shim.Pid) {
				fds = append(fds, open(holder.Pid, func() bool { return len(harness.Holders(shim.Pid)) > 0 }))
			}
		}
	case KillShim, StopShim:
		for _, shim := range shims {
			fds = append(fds, e.openShim(shim.Pid))
		}
	}
	e.signal(f, fds...)
	return shims, ok
}

// podLife runs a pod and what is in it.
func (e *Env) podLife(ctx context.Context, s Step) error {
	handler := cri.PodSandbox
	if s.NoPause && e.daemon.Env.Runtime == harness.Ours {
		handler = cri.Shim
	}
	config := cri.PodConfig(e.newID(&place{}, "p"), e.podParent())
	config.Linux.SecurityContext.NamespaceOptions.Pid = s.pidMode()
	p, err := e.daemon.RunPod(ctx, handler, config)
	if err != nil {
		return err
	}
	if handler == cri.Shim {
		e.order.ignore(podNamespace, p.ID)
	}
	errs := make([]error, s.Members)
	var all sync.WaitGroup
	for i := range s.Members {
		all.Go(func() { errs[i] = e.member(ctx, p, i, s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// pidMode says in which PID namespace the containers of a pod are.
func (s Step) pidMode() runtimeapi.NamespaceMode {
	if s.SharePIDs {
		return runtimeapi.NamespaceMode_POD
	}
	return runtimeapi.NamespaceMode_CONTAINER
}

// member runs a container of a pod, and execs in it. The first one is stopped, which its program does not hear of, and
// removed; the others are left to the pod.
func (e *Env) member(ctx context.Context, p *cri.Pod, i int, s Step) error {
	config := cri.ContainerConfig(fmt.Sprintf("c%d", i), forever.argv(false)...)
	config.Linux.SecurityContext.NamespaceOptions.Pid = s.pidMode()
	config.LogPath = ""
	id, err := p.Create(ctx, config)
	if err != nil {
		return err
	}
	e.count("containers")
	e.count("containers in pods")
	runtime := e.daemon.Runtime
	_, err = runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	for n := 0; n < s.Count && err == nil; n++ {
		err = e.execSync(ctx, id, []program{succeeds, fails, says}[n%3])
	}
	if err != nil || i > 0 {
		return err
	}
	_, err = runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
	status, e1 := runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	_, e2 := runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	if err = errors.Join(err, e1, e2); err != nil {
		return err
	}
	c := status.GetStatus()
	if c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || c.GetExitCode() != killed {
		return fmt.Errorf("container %s was stopped and is %v with code %d, want exited with %d", id, c.GetState(),
			c.GetExitCode(), killed)
	}
	return nil
}

// execSync runs a program in a container of a pod.
func (e *Env) execSync(ctx context.Context, id string, p program) error {
	r, err := e.daemon.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: p.argv(false), Timeout: 30})
	if err != nil {
		return err
	}
	e.count("execs")
	out := ""
	if p == says {
		out = line
	}
	if code := behaviours[p].codes[0]; r.GetExitCode() != int32(code) || string(r.GetStdout()) != out {
		return fmt.Errorf("exec of a program that %v: exit code %d, output %q, want %d, %q", p, r.GetExitCode(),
			r.GetStdout(), code, out)
	}
	return nil
}
