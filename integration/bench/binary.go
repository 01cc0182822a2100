// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

const (
	rowInitShim      = "package init, shim"
	rowInitContainer = "package init, a container's first stage"
	rowSize          = "binaries, shim and runtime"
)

func binaryGroup() group {
	return group{
		name: "binary", about: "what each start of the binaries costs, and their size",
		rows: []row{
			{Name: rowInitShim, Unit: "ms"},
			{Name: rowInitContainer, Unit: "ms"},
			{Name: rowSize, Unit: "MiB"},
		},
		measure: func(b *bench, ctx context.Context) error {
			const rounds = 5
			if err := b.turns(ctx, rounds, b.packageInits); err != nil {
				return err
			}
			return b.turns(ctx, 1, b.sizes)
		},
	}
}

func (b *bench) packageInits(ctx context.Context, column int, s *subject) error {
	for _, row := range []struct{ name, binary string }{{rowInitShim, s.shim}, {rowInitContainer, s.inner}} {
		if row.name == rowInitShim && b.borrowed(column) {
			continue
		}
		ms, ok, err := packageInit(ctx, row.binary)
		if err != nil {
			return err
		}
		if ok {
			b.add(row.name, column, ms)
		}
	}
	return nil
}

func (b *bench) sizes(_ context.Context, column int, s *subject) error {
	var total int64
	for binary := range map[string]bool{s.shim: true, s.inner: true} {
		info, err := os.Stat(binary)
		if err != nil {
			return err
		}
		total += info.Size()
	}
	b.add(rowSize, column, float64(total)/(1<<20))
	return nil
}

// packageInit is the time that a Go program spends before main. ok is false for a program that is not in Go.
func packageInit(ctx context.Context, binary string) (ms float64, ok bool, err error) {
	cmd := exec.CommandContext(ctx, binary, "--version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		return 0, false, fmt.Errorf("%s --version: %w: %s", binary, err, trace.String())
	}
	ms, ok = sumInit(trace.String())
	return ms, ok, nil
}

// sumInit adds up the clock column of GODEBUG=inittrace=1 (package runtime, "inittrace").
func sumInit(trace string) (ms float64, ok bool) {
	for line := range strings.Lines(trace) {
		f := strings.Fields(line)
		// init internal/bytealg @0.008 ms, 0 ms clock, 0 bytes, 0 allocs
		if len(f) < 7 || f[0] != "init" || f[6] != "clock," {
			continue
		}
		n, err := strconv.ParseFloat(f[4], 64)
		if err != nil {
			continue
		}
		ms, ok = ms+n, true
	}
	return ms, ok
}
