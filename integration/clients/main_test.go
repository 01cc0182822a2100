// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"sandbox.internal/shim/integration/clients/table"
	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

var (
	update = flag.Bool("update", false, "write what came of all cases into docs/compatibility.md")
	from   = flag.String("from", "", "run nothing: write what came of cases in a virtual machine, in a `file`, into that page")
)

const page = "../../docs/compatibility.md"

// shared is the Docker of all tests but those that need one of their own, and isolation what all have to themselves;
// TestMain owns both. seen is what came of all cases.
var (
	shared    *dockerd
	isolation *cri.Isolation
	seen      results
	played    atomic.Int64 // sessions
)

func TestMain(m *testing.M) {
	flag.Parse()
	status, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func run(m *testing.M) (int, error) {
	if *from != "" {
		return 0, table.Merge(page, *from)
	}
	which := os.Getenv("SHIM_TEST_CLIENTS")
	if which == "" {
		fmt.Fprintln(os.Stderr, "NOT TESTED: clients: make test-clients")
		return 0, nil
	}
	ctx := context.Background()
	env, err := harness.Require(ctx)
	if err != nil {
		return 1, err
	}
	provide := tools.BuildDocker
	if which == "debian" {
		provide = tools.DebianDocker
	}
	programs, err := provide(ctx)
	if err != nil {
		return 1, err
	}
	if isolation, err = cri.Isolate(); err != nil {
		return 1, err
	}
	status, err := runIn(ctx, m, env, programs)
	return status, errors.Join(err, isolation.Close())
}

func runIn(ctx context.Context, m *testing.M, env harness.Env, programs tools.Docker) (status int, err error) {
	if shared, err = newDockerd(env, programs, nil); err != nil {
		return 1, fmt.Errorf("prepare Docker: %w", err)
	}
	defer func() { err = errors.Join(err, shared.close()) }()
	image, err := harness.ImageTar(env)
	if err == nil {
		err = shared.setUp(ctx, image)
	}
	if err != nil {
		return 1, fmt.Errorf("start Docker: %w\n%s", err, shared.logs())
	}
	status = m.Run()
	if status == 0 && played.Load() == 0 {
		return 1, errors.New("no case was run: -run matches none")
	}
	all := []string{"", "TestNerdctl"} // which has all cases of its table
	if status == 0 && slices.Contains(all, flag.Lookup("test.run").Value.String()) {
		err = record()
	}
	return status, err
}

// record writes the results to where they are wanted: into the page, or into a directory for those who cannot write
// that.
func record() error {
	columns, err := seen.columns()
	if err != nil {
		return err
	}
	if dir := os.Getenv("SHIM_TEST_RESULTS"); dir != "" {
		err = table.Keep(filepath.Join(dir, "clients.json"), columns)
	}
	if *update {
		err = errors.Join(err, table.Put(page, columns))
	}
	return err
}
