// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"sandbox.internal/shim/integration/cri"
)

// isolation is that of the test which runs the bench. TestMain owns it.
var isolation *cri.Isolation

func TestMain(m *testing.M) {
	var err error
	if isolation, err = cri.Isolate(); err == nil {
		status := m.Run()
		if err = isolation.Close(); err == nil {
			os.Exit(status)
		}
		err = errors.Join(err, fmt.Errorf("tests ended with status %d", status))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
