// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

func TestSysctls_Names(t *testing.T) {
	for key, want := range map[string]struct{ name, path string }{
		"kernel.shmmax":                       {"kernel.shmmax", "/proc/sys/kernel/shmmax"},
		"kernel/shmmax":                       {"kernel.shmmax", "/proc/sys/kernel/shmmax"},
		"net/ipv4/conf/eno2.100/rp_filter":    {"net.ipv4.conf.eno2/100.rp_filter", "/proc/sys/net/ipv4/conf/eno2.100/rp_filter"},
		"net.ipv4.conf.eno2/100.rp_filter":    {"net.ipv4.conf.eno2/100.rp_filter", "/proc/sys/net/ipv4/conf/eno2.100/rp_filter"},
		"fs.mqueue.msg_max":                   {"fs.mqueue.msg_max", "/proc/sys/fs/mqueue/msg_max"},
		"net.ipv4.ip_unprivileged_port_start": {"net.ipv4.ip_unprivileged_port_start", "/proc/sys/net/ipv4/ip_unprivileged_port_start"},
	} {
		name := sysctlName(key)
		if path := sysctlPath(name); name != want.name || path != want.path {
			t.Errorf("sysctl %q is %q at %q, want %+v", key, name, path, want)
		}
	}
}

// sysctls are one of each namespace, with values that no host has.
var sysctls = map[string]string{
	"net.ipv4.ip_unprivileged_port_start": "77",
	"net/ipv4/ip_forward":                 "1",
	"net.ipv4.ping_group_range":           "0 1000",
	"kernel.shm_rmid_forced":              "1",
	"kernel.sem":                          "250 32001 31 127",
	"fs.mqueue.msg_max":                   "11",
	"kernel.domainname":                   "pod.example",
}

func read(t *testing.T, keys map[string]string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for key := range keys {
		data, err := os.ReadFile(sysctlPath(sysctlName(key)))
		if err != nil {
			t.Error(err)
		}
		got[key] = strings.Join(strings.Fields(string(data)), " ")
	}
	return got
}

func TestSysctls_AreThePods(t *testing.T) {
	for name, config := range map[string]Config{
		"main thread":             {PID: ModeContainer},
		"a process":               {PID: ModePod},
		"a user namespace":        {PID: ModeContainer, User: &idmap.Mappings{UIDs: mapping, GIDs: mapping}},
		"a user namespace of CRI": {PID: ModePod, User: &idmap.Mappings{UIDs: mapping, GIDs: mapping}, NetNS: "user"},
	} {
		t.Run(name, func(t *testing.T) {
			if config.NetNS == "user" {
				config.NetNS = inUserNamespace(t, mapping)
			}
			before := read(t, sysctls)
			config.Sysctls = sysctls
			p := start(t, request(t, func(r *Request) { r.Config = config }))
			err := inNamespaces(p.Pid(), unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, func() error {
				for key, got := range read(t, sysctls) {
					if got != sysctls[key] {
						t.Errorf("%s in the pod = %q, want %q", key, got, sysctls[key])
					}
				}
				return nil
			})
			testx.Must(t, err)
			if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 1 || os.Geteuid() != 0 {
				t.Errorf("the shim is dumpable: %d (%v), and user %d, want 1 and 0", dumpable, err, os.Geteuid())
			}
			for key, got := range read(t, sysctls) {
				if got != before[key] {
					t.Errorf("%s of the host was %q and is %q", key, before[key], got)
				}
			}
		})
	}
}
