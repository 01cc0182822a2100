// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

var update = flag.Bool("update", false, "write the table of Docker's cases into docs/compatibility.md")

// shared is the Docker of all tests but those that need one of their own; TestMain owns it. seen is the results.
var (
	shared *dockerd
	seen   results
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv("SHIM_TEST_CLIENTS") == "" {
		fmt.Fprintln(os.Stderr, "NOT TESTED: Docker: make test-clients")
		return 0
	}
	ctx := context.Background()
	env, err := harness.Require(ctx)
	var programs tools.Docker
	if err == nil {
		programs, err = tools.BuildDocker(ctx)
	}
	var isolation *cri.Isolation
	if err == nil {
		isolation, err = cri.Isolate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status, err := runIn(ctx, m, env, programs)
	if err = errors.Join(err, isolation.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

func runIn(ctx context.Context, m *testing.M, env harness.Env, programs tools.Docker) (int, error) {
	var err error
	if shared, err = newDockerd(env, programs, nil); err != nil {
		return 1, fmt.Errorf("prepare Docker: %w", err)
	}
	image, err := harness.ImageTar(env)
	if err == nil {
		err = shared.setUp(ctx, image)
	}
	if err != nil {
		return 1, errors.Join(fmt.Errorf("start Docker: %w\n%s", err, shared.logs()), shared.close())
	}
	status := m.Run()
	if status == 0 && *update && flag.Lookup("test.run").Value.String() == "" { // all cases
		err = seen.write(shared)
	}
	return status, errors.Join(err, shared.close())
}
