// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// podLike is what Kubernetes asks for by default.
func podLike(p *specs.Process) {
	user(1000)(p)
	capped(p)
	p.Capabilities.Effective, p.Capabilities.Permitted = nil, nil
	p.NoNewPrivileges = true
}

func BenchmarkExec(b *testing.B) {
	for _, kind := range []struct {
		name          string
		configVariant func(*process.Config)
		change        func(*specs.Process)
	}{
		{"plain", nil, nil},
		{"pod", filtered(b, nil), podLike},
	} {
		for _, by := range []struct {
			name  string
			start way
		}{{"libcontainer", byLibcontainer}, {"launcher", byLauncher}} {
			b.Run(kind.name+"/"+by.name, func(b *testing.B) { benchmarkExec(b, kind.configVariant, kind.change, by.start) })
		}
	}
}

func benchmarkExec(b *testing.B, configVariant func(*process.Config), change func(*specs.Process), start way) {
	b.Helper()
	box := withProbe(b, configVariant)
	p := command("true")
	if change != nil {
		change(p)
	}
	run := func() {
		streams, err := stdio.Open(b.Context(), stdio.Config{}, idmap.Owner{})
		must(b, err)
		h, err := start(box.RuntimeContainer.(*container), b.Context(), p, streams)
		must(b, err)
		if exit := h.Wait(); exit.Status != 0 {
			b.Fatalf("status %d, want 0", exit.Status)
		}
		must(b, streams.Close())
	}
	run() // what is made once is made
	before := cpuTime(b)
	for b.Loop() {
		run()
	}
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// cpuTime is what this process and its children that were waited for have used.
func cpuTime(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		must(b, unix.Getrusage(who, &u))
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}
