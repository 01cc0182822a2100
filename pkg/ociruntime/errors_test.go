// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"testing"
)

func TestStartError_SaysWhatFailed(t *testing.T) {
	for reason, want := range map[string]string{
		"mount /x: input/output error": "mount /x: input/output error",
		"input/output error":           "error during container init: input/output error",
		"no such file or directory":    "error during container init: no such file or directory",
	} {
		inner := fmt.Errorf("error during container init: %w", errors.New(reason))
		err := startError(fmt.Errorf("unable to start container process: %w", inner), []string{"true"})
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
}
