// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/api/types/runc/options"
)

// subject is a runtime under measurement.
type subject struct {
	name    string // heading of its column
	runtime string // as containerd knows it
	shim    string // path of the shim's binary
	inner   string // binary that runs as a container's init before the container's program does
	options any    // runtime options, nil for none
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		rounds = flag.Int("n", 30, "rounds of run-to-delete and of the start command; execs and stats calls are multiples")
		file   = flag.String("json", "", "write the figures to this file as well")
		tools  = flag.String("tools", os.Getenv("SHIM_TOOLS"), "folder with containerd, containerd-shim-runc-v2 and runc")
		shim   = flag.String("shim", os.Getenv("SHIM_BINARY"), "the shim to measure")
	)
	flag.Parse()
	if *tools == "" || *shim == "" || *rounds < 1 {
		return errors.New("SHIM_TOOLS and SHIM_BINARY must be set and -n be positive: make bench does that")
	}
	if os.Geteuid() != 0 {
		return errors.New("containers need root: sudo make bench")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	h, err := start(ctx, *tools, filepath.Dir(*shim))
	if err != nil {
		return err
	}
	defer h.stop()
	table, err := measure(ctx, h, subjects(*tools, *shim), *rounds)
	if err != nil {
		return err
	}
	table.print(os.Stdout)
	if *file == "" {
		return nil
	}
	data, err := json.MarshalIndent(table, "", "  ")
	if err != nil {
		return fmt.Errorf("encode figures: %w", err)
	}
	return os.WriteFile(*file, append(data, '\n'), 0o644)
}

// subjects lists the columns: ours first, as the others are divided by it.
func subjects(tools, shim string) []subject {
	runc := filepath.Join(tools, "runc")
	stock := filepath.Join(tools, "containerd-shim-runc-v2")
	list := []subject{
		{name: "sandbox.v1", runtime: "io.containerd.sandbox.v1", shim: shim, inner: shim},
		{name: "runc.v2", runtime: "io.containerd.runc.v2", shim: stock, inner: runc, options: &options.Options{BinaryName: runc}},
	}
	if crun, err := exec.LookPath("crun"); err == nil {
		list = append(list, subject{
			name: "runc.v2 + crun", runtime: "io.containerd.runc.v2", shim: stock, inner: crun,
			options: &options.Options{BinaryName: crun},
		})
	}
	return list
}
