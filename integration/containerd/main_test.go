// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"sandbox.internal/shim/integration/harness"
)

// shared is the containerd of all tests that do not stop or kill theirs. TestMain owns it.
var shared *harness.Containerd

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx := context.Background()
	env, err := harness.Require(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared, err = harness.NewContainerd(env)
	if err != nil {
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
