// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"errors"
	"path/filepath"
	"testing"

	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// direct calls the shim of the pod, past containerd, on a connection that stays open for the test.
func (p *pod) direct() task3.TTRPCTaskService {
	e := p.e
	e.Helper()
	bundles := "io.containerd.runtime.v2.task"
	if e.way == cri.Shim {
		bundles = "io.containerd.sandbox.controller.v1.shim"
	}
	direct, err := harness.DialShim(e, filepath.Join(e.daemon.State, bundles, "k8s.io", p.ID))
	e.must(err, "dial the shim")
	return direct
}

// endPause kills the pause container of the pod and returns when containerd has deleted its task.
func (p *pod) endPause() {
	e := p.e
	e.Helper()
	cl, err := e.daemon.Client()
	e.must(err, "connect to containerd")
	defer func() { _ = cl.Close() }() // it has done what it was for
	ctx := namespaces.WithNamespace(e.ctx, "k8s.io")
	pause, err := cl.LoadContainer(ctx, p.ID)
	e.must(err, "pause container")
	running, err := pause.Task(ctx, nil)
	e.must(err, "task of the pause container")
	e.must(running.Kill(ctx, unix.SIGKILL), "kill the pause container")
	harness.Eventually(e, "containerd deletes the task of the pause container", func() error {
		if _, err := pause.Task(ctx, nil); !errdefs.IsNotFound(err) {
			return errors.Join(errors.New("the task is there"), err)
		}
		return nil
	})
}

// As containerd's own TestShutdownShimWhenPauseExitsBeforeWorkload.
func TestShim_IsGoneForEveryClientWhenItsPodIsRemoved(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		shim := p.direct()
		c := p.run("c", forever)
		if e.way == cri.PodSandbox {
			p.endPause()
		}
		_, err := shim.Connect(e.ctx, &task3.ConnectRequest{ID: c.id})
		e.must(err, "connect while a container runs")
		p.remove()
		if answer, err := shim.Connect(e.ctx, &task3.ConnectRequest{}); !errors.Is(err, ttrpc.ErrClosed) {
			e.Errorf("connect after the pod's removal = %v, %v, want %v", answer, err, ttrpc.ErrClosed)
		}
	})
}
