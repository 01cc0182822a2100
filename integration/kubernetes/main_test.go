// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

var (
	update = flag.Bool("update", false, "write the table of cases into docs/compatibility.md")
	from   = flag.String("from", "", "run nothing: write the table of a virtual machine, in a `file`, into that page")
)

// shared is the cluster of all tests; TestMain owns it. seen is the results.
var (
	shared *cluster
	seen   results
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if *from != "" {
		if err := writeFrom(*from); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	if os.Getenv("SHIM_TEST_KUBERNETES") == "" {
		fmt.Fprintln(os.Stderr, "NOT TESTED: Kubernetes: make test-kubernetes")
		return 0
	}
	ctx := context.Background()
	env, err := harness.Require(ctx)
	var programs tools.Kubernetes
	if err == nil {
		programs, err = tools.BuildKubernetes(ctx)
	}
	var isolation *cri.Isolation
	if err == nil {
		isolation, err = cri.Isolate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status, err := runIn(ctx, m, env, isolation, programs)
	if err = errors.Join(err, isolation.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

func runIn(
	ctx context.Context, m *testing.M, env harness.Env, isolation *cri.Isolation, programs tools.Kubernetes,
) (int, error) {
	var err error
	if shared, err = newCluster(env, isolation, programs); err != nil {
		return 1, fmt.Errorf("prepare the cluster: %w", err)
	}
	if err := shared.setUp(ctx); err != nil {
		return 1, errors.Join(fmt.Errorf("start the cluster: %w\n%s", err, shared.logs()), shared.close())
	}
	status := m.Run()
	if status == 0 && len(seen.rows) == 0 {
		return 1, errors.Join(errors.New("no case was run: -run matches none"), shared.close())
	}
	if dir := os.Getenv("SHIM_TEST_RESULTS"); status == 0 && dir != "" {
		err = os.WriteFile(filepath.Join(dir, "kubernetes.md"), []byte(seen.table(shared)), 0o600)
	}
	if status == 0 && *update && flag.Lookup("test.run").Value.String() == "" { // all cases
		err = errors.Join(err, writeSection("kubernetes", seen.table(shared)))
	}
	return status, errors.Join(err, shared.close())
}
