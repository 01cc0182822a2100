// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
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
	if flag.Lookup("test.run").Value.String() == "" && status == 0 {
		err = checkLaunched(shared.LogFrom(0))
	}
	if err != nil {
		status = 1
	}
	return status, errors.Join(err, shared.Close())
}

// checkLaunched refuses that libcontainer starts more than one container in twenty, beside those that share a PID
// namespace on a kernel with which the launcher cannot: many tests are about these.
func checkLaunched(log string) error {
	started := len(startedContainer.FindAllString(log, -1))
	others, old := 0, 0
	joins, err := harness.HasKernel(6, 17) // with it the launcher makes the procfs of a PID namespace that it joins
	if err != nil {
		return err
	}
	for line := range strings.Lines(log) {
		switch {
		case !strings.Contains(line, "init by libcontainer"):
		case !joins && strings.Contains(line, "PID namespace of another, before Linux 6.17"):
			old++
		default:
			others++
		}
	}
	fmt.Fprintf(os.Stderr, "libcontainer started the first process of %d containers, of %d with a shared PID namespace "+
		"before Linux 6.17; CRI started %d\n", others, old, started)
	if started == 0 || others*20 > started {
		return errors.New("want more by the launcher, and at least one")
	}
	return nil
}

var startedContainer = regexp.MustCompile(`StartContainer for .* returns successfully`)
