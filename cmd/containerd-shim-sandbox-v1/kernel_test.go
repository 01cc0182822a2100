// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestCheckRelease_RefusesWhatIsTooOld(t *testing.T) {
	for release, want := range map[string]bool{
		"4.19.0-27-amd64":        false,
		"5.4.0-216-generic":      false,
		"5.9.16":                 false,
		"5.10.0-46-amd64":        true,
		"5.15.0-1083-aws":        true,
		"6.1.0-56-amd64":         true,
		"7.2.13+deb14-amd64":     true,
		"10.0.0":                 true,
		"a kernel of somebody's": true,
	} {
		err := checkRelease(release)
		if got := err == nil; got != want {
			t.Errorf("checkRelease(%q) = %v, want supported: %v", release, err, want)
		}
		if err != nil && (!errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), release) ||
			!strings.Contains(err.Error(), "5.10")) {
			t.Errorf("checkRelease(%q) = %v, want the class, the release and the oldest one", release, err)
		}
	}
}
