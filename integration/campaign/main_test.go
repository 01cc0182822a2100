// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// programs and isolation are those of all tests. TestMain owns them.
var (
	programs  harness.Env
	isolation *cri.Isolation
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	var err error
	if programs, err = harness.Require(context.Background()); err == nil {
		isolation, err = cri.Isolate()
	}
	status := 1
	if err == nil {
		status = m.Run()
		err = errors.Join(err, isolation.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}
