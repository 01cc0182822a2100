// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"context"
	"fmt"
	"os"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// TestMain owns both.
var (
	shared *harness.Containerd
	binary string // of sandboxctl
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx := context.Background()
	env, err := harness.Require(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", harness.NamespacePrefix)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays of it harms nobody
	const everybodyRuns = 0o755
	if err := os.Chmod(dir, everybodyRuns); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if binary, err = harness.Sandboxctl(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if shared, err = harness.NewContainerd(env); err != nil {
		fmt.Fprintln(os.Stderr, "prepare containerd:", err)
		return 1
	}
	status := 1
	if err := shared.Start(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "start containerd: %v\n%s", err, shared.LogFrom(0))
	} else {
		status = m.Run()
	}
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop containerd:", err)
		return 1
	}
	return status
}
