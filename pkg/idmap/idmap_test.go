// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idmap

import (
	"strings"
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

func TestCheck(t *testing.T) {
	for want, list := range map[string]mappings{
		"": {{ContainerID: 0, HostID: 1000, Size: 5}, {ContainerID: 5, HostID: 1005, Size: 5}},
		"uids[0] containerID 0 hostID 1000 size 0: must map an id, and none twice": {{ContainerID: 0, HostID: 1000}},
		"uids: has 100000 mappings": make(mappings, 100000),
		"uids[1] containerID 4 hostID 2000 size 5: must": {
			{ContainerID: 0, HostID: 1000, Size: 5}, {ContainerID: 4, HostID: 2000, Size: 5},
		},
		"uids[1] containerID 5 hostID 996 size 5: must": {
			{ContainerID: 0, HostID: 1000, Size: 5}, {ContainerID: 5, HostID: 996, Size: 5},
		},
	} {
		if err := Check("uids", list); (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Check = %v, want %q", err, want)
		}
	}
}
