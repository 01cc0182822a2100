// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// isolation and shared are those of all tests; shared is not for tests that stop or kill containerd. TestMain owns
// them.
var (
	isolation *cri.Isolation
	shared    *cri.Daemon
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	env, err := harness.Require(context.Background())
	if err == nil {
		isolation, err = cri.Isolate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status, err := runIn(m, env)
	if err = errors.Join(err, isolation.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

func runIn(m *testing.M, env harness.Env) (int, error) {
	var err error
	if shared, err = cri.NewDaemon(env, isolation); err != nil {
		return 1, fmt.Errorf("prepare containerd: %w", err)
	}
	if err := shared.Start(context.Background()); err != nil {
		return 1, errors.Join(fmt.Errorf("start containerd: %w\n%s", err, shared.LogFrom(0)), shared.Close())
	}
	status := m.Run()
	return status, shared.Close()
}
