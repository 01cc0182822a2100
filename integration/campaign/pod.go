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

// pod runs a pod from beginning to end, its containers at the same time. After a fault that kills something of it,
// calls may fail; it must go all the same when it is removed.
func (e *Env) pod(ctx context.Context, s Step) string {
	ctx, cancel := context.WithTimeout(ctx, 3*callLimit)
	defer cancel()
	fatal := s.Fault != nil && s.Fault.For == 0
	before := e.allShims()
	if fatal && s.Fault.Kind == KillShim {
		e.order.excuseAll(podNamespace, true)
		defer e.order.excuseAll(podNamespace, false)
	}
	faultDone := make(chan struct{})
	var hit []harness.Proc
	go func() { // joined below
		defer close(faultDone)
		if s.Fault != nil {
			hit = e.podFault(ctx, *s.Fault, before)
		}
	}()
	err := e.podLife(ctx, s)
	<-faultDone
	if fatal && err != nil && strings.Contains(err.Error(), "start failed") {
		for _, shim := range hit {
			e.removeSocket(podNamespace, shimID(shim))
		}
	}
	if fatal {
		err = nil
	}
	remove := func() error {
		if ctx.Err() != nil {
			return nil
		}
		return e.removePods(ctx)
	}
	if e := harness.PollFor(harness.Slow(30*time.Second), remove); e != nil {
		err = errors.Join(err, fmt.Errorf("remove the pod: %w", e))
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return ok
}

// podNamespace is CRI's.
const podNamespace = "k8s.io"

// podFault sends a signal to the shim of a pod, which is one that was not there before, or to one of its processes. It
// returns the shims that it was sent to.
func (e *Env) podFault(ctx context.Context, f Fault, before []harness.Proc) (shims []harness.Proc) {
	select {
	case <-time.After(f.After):
	case <-ctx.Done():
		return nil
	}
	var fds []int
	switch f.Kind {
	case KillInit:
		if all := harness.InCgroup(e.podParent()); len(all) > 0 {
			fds = append(fds, e.contained(all[len(all)-1].Pid))
		}
	case StopContainerd:
		fds = append(fds, open(e.daemon.Pid(), func() bool { return true }))
	case KillHolder:
		for _, shim := range e.newShims(before) {
			for _, holder := range harness.Holders(shim.Pid) {
				fds = append(fds, open(holder.Pid, func() bool { return len(harness.Holders(shim.Pid)) > 0 }))
			}
		}
	case KillShim, StopShim:
		shims = e.newShims(before)
		for _, shim := range shims {
			fds = append(fds, e.openShim(shim.Pid))
		}
	}
	e.signal(f, fds...)
	return shims
}

func (e *Env) newShims(before []harness.Proc) []harness.Proc {
	return slices.DeleteFunc(e.allShims(), func(shim harness.Proc) bool {
		return slices.ContainsFunc(before, func(p harness.Proc) bool { return p.Pid == shim.Pid })
	})
}

// podLife runs a pod and what is in it.
func (e *Env) podLife(ctx context.Context, s Step) error {
	handler := cri.PodSandbox
	if s.NoPause && e.daemon.Env.Runtime == harness.Ours {
		handler = cri.Shim
	}
	var p *cri.Pod
	err := e.cri(func() (err error) {
		name := e.newID(&place{}, "p")
		config := cri.PodConfig(name, e.podParent())
		config.Linux.SecurityContext.NamespaceOptions.Pid = s.pidMode()
		p, err = e.daemon.RunPod(ctx, handler, config)
		return err
	})
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

// cri counts a call through CRI and makes it.
func (e *Env) cri(call func() error) error {
	e.count("operations")
	return call()
}

// member runs a container of a pod, and execs in it. The first one is removed, the others are left to the pod.
func (e *Env) member(ctx context.Context, p *cri.Pod, i int, s Step) error {
	config := cri.ContainerConfig(fmt.Sprintf("c%d", i), forever.argv(false)...)
	config.Linux.SecurityContext.NamespaceOptions.Pid = s.pidMode()
	config.LogPath = ""
	var id string
	err := e.cri(func() (err error) {
		id, err = p.Create(ctx, config)
		return err
	})
	if err != nil {
		return err
	}
	e.count("containers")
	e.count("containers in pods")
	runtime := e.daemon.Runtime
	if err := e.cri(func() error {
		_, err := runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	}); err != nil {
		return err
	}
	for n := range s.Count {
		if err := e.cri(func() error { return e.execSync(ctx, id, []program{succeeds, fails, says}[n%3]) }); err != nil {
			return err
		}
	}
	if i > 0 {
		return nil
	}
	return errors.Join(e.cri(func() error {
		_, err := runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
		return err
	}), e.cri(func() error { return e.wantExited(ctx, id) }), e.cri(func() error {
		_, err := runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return err
	}))
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

// wantExited checks what CRI says of a container that was stopped, which its program does not hear of.
func (e *Env) wantExited(ctx context.Context, id string) error {
	r, err := e.daemon.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return err
	}
	if s := r.GetStatus(); s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || s.GetExitCode() != killed {
		return fmt.Errorf("container %s was stopped and is %v with code %d, want exited with %d", id, s.GetState(),
			s.GetExitCode(), killed)
	}
	return nil
}

// removePods stops and removes all pods.
func (e *Env) removePods(ctx context.Context) error {
	return e.cri(func() error { return e.daemon.RemovePods(ctx) })
}
