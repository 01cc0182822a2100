// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"

	"sandbox.internal/shim/pkg/cgroup"
)

// silentBus makes the system's D-Bus one that answers each line of the
// authentication with a line of answers, and then nothing.
func silentBus(t *testing.T, answers ...string) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "bus")
	listener, err := net.Listen("unix", address)
	must(t, err)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+address)
	var serving sync.WaitGroup
	serving.Go(func() { // ends with the listener, which the clean-up closes and joins
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { // ends when the client closes the connection
				defer conn.Close()
				lines := bufio.NewReader(conn)
				for _, answer := range answers {
					if _, err := lines.ReadString('\n'); err != nil {
						return
					}
					if _, err := io.WriteString(conn, answer+"\r\n"); err != nil {
						return
					}
				}
				_, _ = io.Copy(io.Discard, lines) // until the client gives up
			})
		}
	})
	t.Cleanup(func() { must(t, listener.Close()); serving.Wait() })
}

func soon(t *testing.T, cause error) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, cause)
	t.Cleanup(cancel)
	return ctx
}

func TestSystemdThatDoesNotAnswerIsWaitedForWithinABound(t *testing.T) {
	for name, answers := range map[string][]string{
		"from the beginning":       nil,
		"after the authentication": {"REJECTED EXTERNAL", "OK 1234", "AGREE_UNIX_FD"},
	} {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			silentBus(t, answers...)
			begin := time.Now()
			err := awaitSystemd(soon(t, errSystemdSilent))
			if !errors.Is(err, errSystemdSilent) || errors.Is(err, errSystemdAbsent) || !errdefs.IsFailedPrecondition(err) {
				t.Errorf("awaitSystemd = %v, want that it does not answer", err)
			}
			if took := time.Since(begin); took > systemdTimeout/2 {
				t.Errorf("awaitSystemd took %v, want it to end with its context", took)
			}
			wantText(t, err, "systemd", "D-Bus", "systemctl status")
		})
	}
}

func TestSystemdIsAskedNoLongerThanTheCallerWants(t *testing.T) {
	silentBus(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := awaitSystemd(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("awaitSystemd = %v, want canceled", err)
	}
}

// nobodyListens makes a D-Bus that is not there. Root reaches systemd then at a
// socket of its own, if it runs.
func nobodyListens(t *testing.T) {
	t.Helper()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "bus"))
}

func TestSystemdThatIsAbsentIsToldFromOneThatIsSilent(t *testing.T) {
	nobodyListens(t)
	err := askSystemd(t.Context(), func(context.Context, *dbus.Conn) error { return nil })
	if _, missing := os.Stat("/run/systemd/private"); missing == nil {
		if err != nil {
			t.Errorf("askSystemd = %v, want it asked at its own socket", err)
		}
		return
	}
	if !errors.Is(err, errSystemdAbsent) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("askSystemd = %v, want that it cannot be reached", err)
	}
	wantText(t, err, "systemd", "D-Bus", "no such file")
	if err := awaitSystemd(t.Context()); err != nil {
		t.Errorf("awaitSystemd = %v, want none", err)
	}
}

// What is left in the cgroup of a scope ends whether systemd answers or not.
func TestSystemdIsNotNeededToEndAScope(t *testing.T) {
	for _, tc := range []struct {
		name string
		bus  func(*testing.T)
		want error
	}{
		{"it is silent", func(t *testing.T) { t.Helper(); silentBus(t) }, errSystemdSilent},
		{"it is absent", nobodyListens, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := newConfig(t, "true")
			dirs := madeBefore(t, config)
			left := stranger(t, dirs)
			paths := map[string]string{"": dirs[0]}
			if len(dirs) > 1 { // cgroup v1
				paths = map[string]string{"devices": dirs[0], "freezer": dirs[1], "pids": dirs[2]}
			}
			tc.bus(t)
			if err := endCgroup(bounded(t), cgroup.New(paths), true); !errors.Is(err, tc.want) {
				t.Errorf("endCgroup = %v, want %v", err, tc.want)
			}
			_ = left.Wait() // that it was killed is what is wanted
			for _, dir := range dirs {
				if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("cgroup %s: %v, want it gone", dir, err)
				}
			}
		})
	}
}

func TestSystemdIsNeededForAScope(t *testing.T) {
	if systemd.IsRunningSystemd() {
		t.Skip("SKIPPED: this machine was booted with systemd")
	}
	config := newConfig(t, "true")
	config.Spec.Linux.CgroupsPath, config.SystemdCgroup = "a.slice:b:c", true
	_, err := tryCreate(t, t.Context(), config)
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Create = %v, want failed precondition", err)
	}
	wantText(t, err, "linux.cgroupsPath", "a.slice:b:c", "systemd")
}

func TestSystemdScopeNames(t *testing.T) {
	long := strings.Repeat("x", unitLimit)
	for _, tc := range []struct{ path, want string }{
		{"a.slice:b:c", ""},
		{":b:c", ""},
		{"-.slice:b:c", ""},
		{"a-b-c.slice:cri-containerd:0123456789abcdef", ""},
		{"a.slice::c", ""},
		{"a.slice:b:c_1.2", ""},
		{"a.slice:b:" + long[:247], ""},
		{"a.slice:b:" + long[:248], "at most 255"},
		{"/a/b", "slice:prefix:name"},
		{"a.slice:b", "slice:prefix:name"},
		{"a.slice:b:c:d", "slice:prefix:name"},
		{"a:b:c", `slice "a" must`},
		{".slice:b:c", `slice ".slice" must`},
		{"a--b.slice:b:c", "must be the name of a slice"},
		{"a/b.slice:b:c", "must be the name of a slice"},
		{"a b.slice:b:c", "must be the name of a slice"},
		{"a.slice:b:", "must not be empty"},
		{"a.slice:b:c.slice", "must not be that of a slice"},
		{"a.slice:b:c@d", `unit "b-c@d.scope" must`},
		{"a.slice:b:c/d", "must be at most"},
	} {
		t.Run(fmt.Sprintf("%.40s", tc.path), func(t *testing.T) {
			config := newConfig(t, "true")
			config.Spec.Linux.CgroupsPath, config.SystemdCgroup = tc.path, true
			err := checkScopeForm(config)
			if parts := strings.Split(tc.path, ":"); err == nil {
				err = checkScopeName(tc.path, &cgroups.Cgroup{Parent: parts[0], ScopePrefix: parts[1], Name: parts[2]})
			}
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("checks of %q = %v, want it taken", tc.path, err)
			case tc.want != "" && !errdefs.IsInvalidArgument(err):
				t.Errorf("checks of %q = %v, want invalid argument", tc.path, err)
			case tc.want != "":
				wantText(t, err, "linux.cgroupsPath", tc.path, tc.want)
			}
		})
	}
}

func TestSystemdScopeProperties(t *testing.T) {
	unified := func(weight string) *cgroups.Resources {
		return &cgroups.Resources{Unified: map[string]string{"io.weight": weight}}
	}
	r := &cgroups.Resources{Memory: 5, MemorySwap: 5, BlkioWeight: 10}
	if all := scopeProperties(r, false); len(all) > 0 {
		t.Errorf("scopeProperties on cgroup v1 = %v, want none", all)
	}
	for _, tc := range []struct {
		name string
		r    *cgroups.Resources
		want map[string]uint64
	}{
		{"nothing", &cgroups.Resources{}, nil},
		{"a limit on memory and none on swap", &cgroups.Resources{Memory: 5}, nil},
		{"swap beside memory", &cgroups.Resources{Memory: 5, MemorySwap: 7}, nil},
		{"no swap", &cgroups.Resources{Memory: 5, MemorySwap: 5}, map[string]uint64{"MemorySwapMax": 0}},
		{"memory and swap without limit", &cgroups.Resources{Memory: -1, MemorySwap: -1}, nil},
		{"the least weight", &cgroups.Resources{BlkioWeight: 10}, map[string]uint64{"IOWeight": 1}},
		{"the greatest weight", &cgroups.Resources{BlkioWeight: 1000}, map[string]uint64{"IOWeight": 10000}},
		{"a weight of cgroup v2", unified("55"), map[string]uint64{"IOWeight": 55}},
		{"a weight of cgroup v2 by its name", unified(" default 55\n"), map[string]uint64{"IOWeight": 55}},
		{"the weight of a device", unified("8:0 55"), nil},
		{"what the kernel says of all", unified("default 55\n8:0 44\n"), map[string]uint64{"IOWeight": 55}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := scopeProperties(tc.r, true)
			if len(all) != len(tc.want) {
				t.Errorf("scopeProperties = %v, want %v", all, tc.want)
			}
			for _, p := range all {
				if got, ok := p.Value.Value().(uint64); !ok || got != tc.want[p.Name] {
					t.Errorf("property %s = %v, want %d", p.Name, p.Value, tc.want[p.Name])
				}
			}
		})
	}
}
