// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idmap

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

type mappings = []specs.LinuxIDMapping

func TestRoot(t *testing.T) {
	other := mappings{{ContainerID: 5, HostID: 1, Size: 9}, {ContainerID: 0, HostID: 1000, Size: 5}}
	if got := Root(other, nil); got != (Owner{UID: 1000}) {
		t.Errorf("Root = %+v, want user 1000 and group 0", got)
	}
	if got := Root(mappings{{ContainerID: 1, HostID: 7, Size: 9}}, other); got != (Owner{GID: 1000}) {
		t.Errorf("Root = %+v, want user 0 and group 1000", got)
	}
}
