// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/opencontainers/cgroups"

	"sandbox.internal/shim/pkg/internal/testx"
)

// silentBus makes the system's D-Bus one that answers each line of the
// authentication with a line of answers, and then nothing.
func silentBus(t *testing.T, answers ...string) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "bus")
	listener, err := net.Listen("unix", address)
	testx.Must(t, err)
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
	t.Cleanup(func() { testx.Must(t, listener.Close()); serving.Wait() })
}

func soon(t *testing.T, cause error) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, cause)
	t.Cleanup(cancel)
	return ctx
}

func TestAwait_IsBounded(t *testing.T) {
	for name, answers := range map[string][]string{
		"from the beginning":       nil,
		"after the authentication": {"REJECTED EXTERNAL", "OK 1234", "AGREE_UNIX_FD"},
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			t.Cleanup(func() {
				testx.Eventually(t, "the end of goroutines", func() bool { return runtime.NumGoroutine() <= before })
			})
			silentBus(t, answers...)
			begin := time.Now()
			err := Await(soon(t, ErrSilent))
			if !errors.Is(err, ErrSilent) || errors.Is(err, errAbsent) || !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Await = %v, want that it does not answer", err)
			}
			if took := time.Since(begin); took > timeout/2 {
				t.Errorf("Await took %v, want it to end with its context", took)
			}
			testx.WantText(t, err, "systemd", "D-Bus", "systemctl status")
		})
	}
}

// nobodyListens makes a D-Bus that is not there. Root reaches systemd then at a
// socket of its own, if it runs.
func nobodyListens(t *testing.T) {
	t.Helper()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "bus"))
}

func TestAsk_TellsAbsentFromSilent(t *testing.T) {
	nobodyListens(t)
	err := ask(t.Context(), func(context.Context, *dbus.Conn) error { return nil })
	if _, missing := os.Stat("/run/systemd/private"); missing == nil {
		if err != nil {
			t.Errorf("ask = %v, want it asked at its own socket", err)
		}
		return
	}
	if !errors.Is(err, errAbsent) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("ask = %v, want that it cannot be reached", err)
	}
	testx.WantText(t, err, "systemd", "D-Bus", "no such file")
	if err := Await(t.Context()); err != nil {
		t.Errorf("Await = %v, want none", err)
	}
}

// A connection is not closed under somebody who uses it.
func TestConnected_CountsUsers(t *testing.T) {
	first, second := Connected(), Connected()
	first()
	if users.Load() != 1 {
		t.Errorf("%d users, want the second", users.Load())
	}
	second()
	if users.Load() != 0 {
		t.Errorf("%d users, want none", users.Load())
	}
}

func TestCheckName(t *testing.T) {
	long := strings.Repeat("x", unitLimit)
	const refused = "must be SLICE:PREFIX:NAME"
	for path, want := range map[string]string{
		"a.slice:b:c": "",
		":b:c":        "",
		"-.slice:b:c": "",
		"a-b-c.slice:cri-containerd:0123456789abcdef": "",
		"a.slice::c":              "",
		"a.slice:b:c_1.2":         "",
		"a.slice:b:" + long[:247]: "",
		"a.slice:b:" + long[:248]: refused,
		"a:b:c":                   refused,
		"a--b.slice:b:c":          refused,
		"a/b.slice:b:c":           refused,
		"a b.slice:b:c":           refused,
		"a.slice:b:":              refused,
		"a.slice:b:c.slice":       refused,
		"a.slice:b:c@d":           refused,
		"a.slice:b:c/d":           refused,
	} {
		t.Run(fmt.Sprintf("%.40s", path), func(t *testing.T) {
			parts := strings.Split(path, ":")
			err := checkName(path, &cgroups.Cgroup{Parent: parts[0], ScopePrefix: parts[1], Name: parts[2]})
			if want == "" {
				testx.Must(t, err)
			} else {
				testx.WantInvalid(t, err, "linux.cgroupsPath", path, want)
			}
		})
	}
}

func TestScope_Properties(t *testing.T) {
	r := &cgroups.Resources{Memory: 5, MemorySwap: 5, BlkioWeight: 10}
	if all := properties(r, false); len(all) > 0 {
		t.Errorf("properties on cgroup v1 = %v, want none", all)
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
		{
			"swap of cgroup v2", // as the kubelet has it beside what containerd adds
			&cgroups.Resources{Memory: 5, MemorySwap: 5, Unified: map[string]string{"memory.swap.max": "3"}}, nil,
		},
		{"memory and swap without limit", &cgroups.Resources{Memory: -1, MemorySwap: -1}, nil},
		{"the least weight", &cgroups.Resources{BlkioWeight: 10}, map[string]uint64{"IOWeight": 1}},
		{"the greatest weight", &cgroups.Resources{BlkioWeight: 1000}, map[string]uint64{"IOWeight": 10000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := properties(tc.r, true)
			if len(all) != len(tc.want) {
				t.Errorf("properties = %v, want %v", all, tc.want)
			}
			for _, p := range all {
				if got, ok := p.Value.Value().(uint64); !ok || got != tc.want[p.Name] {
					t.Errorf("property %s = %v, want %d", p.Name, p.Value, tc.want[p.Name])
				}
			}
		})
	}
}
