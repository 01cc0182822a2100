// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// The launcher has the user already when it forks, and so counts for a moment. libcontainer's threads do too.
func TestExec_TheLimitOfProcessesOfItsUserHolds(t *testing.T) {
	const nobodyElse = 54321
	b := withProbe(t, func(c *process.Config) { user(nobodyElse)(c.Spec.Process) })
	for limit, refused := range map[uint64]bool{1: true, 3: false} { // init is the one other process of the user
		p := command("true")
		user(nobodyElse)(p)
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NPROC", Soft: limit, Hard: limit}}
		got := b.exec(t.Context(), p)
		if refused {
			wantText(t, got.err, "resource temporarily unavailable")
		} else if got != (result{}) {
			t.Errorf("exec with a limit of %d = %+v, want success", limit, got)
		}
	}
}

// What the program may not do the launcher does before the filter is loaded, where that needs no privilege.
func TestExec_AFilterThatLetsNoProcessBeginIsLoadedLast(t *testing.T) {
	for _, forbidden := range []string{"clone", "setsid", "ioctl"} {
		b := withProbe(t, func(c *process.Config) {
			filtered(t, deny(forbidden))(c)
			c.Spec.Process.NoNewPrivileges = true
		})
		for _, terminal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, terminal %v", forbidden, terminal), func(t *testing.T) {
				on := *b
				on.t = t
				p := probed(nil)
				p.NoNewPrivileges, p.Terminal = true, terminal
				if got := on.outcome(byLauncher, p); got.Status != 7 {
					t.Errorf("exec = %+v, want the probe's status 7", got)
				}
				if forbidden != "clone" { // of which libcontainer's Go runtime may be in need
					on.wantSame(p)
				}
			})
		}
	}
}

func TestCommand_AFilterThatLetsNoProcessBeginNeedsNoNewPrivileges(t *testing.T) {
	for _, tc := range []struct {
		name          string
		change        func(*specs.LinuxSeccomp)
		terminal      bool
		noNewPrivs    bool
		wantUncovered bool
	}{
		{name: "an ordinary filter"},
		{name: "an ordinary filter, with a terminal", terminal: true},
		{name: "no fork", change: deny("clone"), wantUncovered: true},
		{name: "no fork, and no new privileges", change: deny("clone"), noNewPrivs: true},
		{name: "no session", change: deny("setsid"), wantUncovered: true},
		{name: "no ioctl", change: deny("ioctl")},
		{name: "no ioctl, with a terminal", change: deny("ioctl"), terminal: true, wantUncovered: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := withProbe(t, filtered(t, tc.change))
			lp := &libcontainer.Process{Args: []string{"true"}, NoNewPrivileges: &tc.noNewPrivs}
			if tc.terminal {
				lp.ConsoleSocket = os.Stdin
			}
			_, err := b.RuntimeContainer.(*container).command(lp, noStreams(t))
			if got := errors.As(err, &unsupported{}); got != tc.wantUncovered {
				t.Errorf("command = %v, want that it is covered: %v", err, !tc.wantUncovered)
			}
		})
	}
}
