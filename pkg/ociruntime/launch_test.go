// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"sync"
	"testing"

	"sandbox.internal/shim/pkg/inspect"
)

func TestLaunch_CountsExecsThatLibcontainerStarts(t *testing.T) {
	c := &container{initReason: "why"}
	if got, want := c.Launch(), (inspect.Launch{Init: inspect.ByLibcontainer, InitReason: "why"}); got != want {
		t.Errorf("launch = %+v, want %+v", got, want)
	}
	const n = 20
	var all sync.WaitGroup
	for range n {
		all.Go(func() { c.fellBack("because") })
	}
	all.Wait()
	c.fellBack("last")
	if got := c.Launch(); got.ExecsByLibcontainer != n+1 || got.ExecReason != "last" {
		t.Errorf("launch = %+v, want %d execs, and the last reason", got, n+1)
	}
	c.config.Checkpoint = "/image"
	if got := c.Launch(); got.Init != inspect.ByCRIU {
		t.Errorf("launch of a container that is restored = %+v", got)
	}
}
