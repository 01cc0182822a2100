// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"fmt"
	"testing"

	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"

	"sandbox.internal/shim/pkg/internal/testx"
)

// fakeManager counts the stops of a unit that Apply makes, or fails to make with err.
type fakeManager struct {
	cgroups.Manager
	err     error
	stopErr error
	stops   int
}

func (m *fakeManager) Apply(int) error { return m.err }
func (m *fakeManager) Destroy() error  { m.stops++; return m.stopErr }

func TestUnit_StopsOnlyWhatItMade(t *testing.T) {
	exists := fmt.Errorf("start: %w", godbus.Error{Name: "org.freedesktop.systemd1.UnitExists"})
	for name, tc := range map[string]struct {
		applied []error
		want    int
	}{
		"not begun":                        {nil, 0},
		"made":                             {[]error{nil}, 1},
		"may have been made":               {[]error{errors.New("join cgroup")}, 1},
		"another's":                        {[]error{exists}, 0},
		"another's after it was made once": {[]error{nil, exists}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := &fakeManager{}
			u := Unit{Manager: m}
			for _, m.err = range tc.applied {
				if err := u.Apply(1); !errors.Is(err, m.err) {
					t.Errorf("Apply = %v, want %v", err, m.err)
				}
			}
			if got := u.Made(); got != (tc.want > 0) {
				t.Errorf("Made = %t, want %t", got, tc.want > 0)
			}
			for range 2 { // by then the name may be another's
				testx.Must(t, u.Destroy())
			}
			if m.stops != tc.want {
				t.Errorf("the unit was stopped %d times, want %d", m.stops, tc.want)
			}
		})
	}
	m := &fakeManager{stopErr: errors.New("silent")}
	u := Unit{Manager: m}
	testx.Must(t, u.Apply(1))
	if err := u.Destroy(); !errors.Is(err, m.stopErr) || !u.Made() {
		t.Errorf("Destroy = %v, and then Made = %t, want it to be tried again", err, u.Made())
	}
}
