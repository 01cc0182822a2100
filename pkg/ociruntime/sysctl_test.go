// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestCreate_NamesASysctlThatCannotBeSet(t *testing.T) {
	for _, tc := range []struct {
		name, sysctl, value string
		want                string
	}{
		{"of the machine", "kernel.panic", "1", "separate kernel namespace"},
		{"of the machine's network", "net.ipv4.ip_local_port_range", "32000 32100", "host network namespace"},
		{"that is none", "fs.mqueue.no_such_thing", "1", "no such file"},
		{"with a value that it does not take", "kernel.shm_rmid_forced", "many", "invalid argument"},
		{"that the configuration says otherwise", "kernel.hostname", "other", "conflicts with the OCI"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantNoLeaks(t)
			c := newConfig(t, "true")
			without(specs.NetworkNamespace)(&c)
			c.Spec.Linux.Sysctl = map[string]string{tc.sysctl: tc.value}
			_, err := tryCreate(t, t.Context(), c)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("Create = %v, want an invalid argument", err)
			}
			wantText(t, err, "linux.sysctl[\""+tc.sysctl+"\"] \""+tc.value+"\"", tc.want)
			wantNothingLeft(t, c)
		})
	}
}
