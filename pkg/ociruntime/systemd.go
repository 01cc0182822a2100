// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
)

// systemdTimeout bounds how long systemd may take to answer one question. An
// Update that is refused asks again, since it puts the former values back.
const systemdTimeout = 10 * time.Second

var (
	// errSystemdAbsent is for where nobody listens: libcontainer's calls fail at once.
	errSystemdAbsent = fmt.Errorf("cannot be reached over D-Bus; look at systemctl status dbus.service: %w", errdefs.ErrFailedPrecondition)
	// errSystemdSilent is for who listens and does not answer.
	errSystemdSilent = fmt.Errorf("does not answer over D-Bus; look at systemctl status dbus.service: %w", errdefs.ErrFailedPrecondition)
)

// askSystemd lets question use a connection to systemd, which ends with ctx or
// when systemdTimeout is over.
//
// It goes before each call of libcontainer that uses D-Bus, since that waits
// for an answer without a bound (cgroups v0.1.0 systemd/common.go), and holds a
// lock of the container meanwhile. It goes the same way to systemd.
func askSystemd(ctx context.Context, question func(context.Context, *dbus.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, systemdTimeout, errSystemdSilent)
	defer cancel()
	conn, err := dbus.NewWithContext(ctx)
	if err == nil {
		defer conn.Close()
		err = question(ctx, conn)
	} else {
		err = fmt.Errorf("%w: %w", errSystemdAbsent, err)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("systemd %w", err)
	}
	return nil
}

// awaitSystemd returns once systemd answers, or when it cannot be reached:
// libcontainer then does without it.
func awaitSystemd(ctx context.Context) error {
	err := askSystemd(ctx, func(_ context.Context, conn *dbus.Conn) error {
		_, err := conn.GetManagerProperty("Version") // it has no context: the connection ends with that
		return err
	})
	if errors.Is(err, errSystemdAbsent) {
		return nil
	}
	return err
}

// prepareScope refuses what libcontainer would find out only when the container
// is half made, and it would then stop the unit of that name, whose ever it is.
func prepareScope(ctx context.Context, cgroupsPath string, c *cgroups.Cgroup) error {
	if !c.Systemd {
		return nil
	}
	if err := checkScopeName(cgroupsPath, c); err != nil {
		return err
	}
	if !systemd.IsRunningSystemd() {
		return fmt.Errorf("linux.cgroupsPath %q: asks for a scope of systemd, which this machine was not booted with: %w", cgroupsPath, errdefs.ErrFailedPrecondition)
	}
	c.SystemdProps = append(c.SystemdProps, scopeProperties(c.Resources, cgroups.IsCgroup2UnifiedMode())...)
	return askSystemd(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		units, err := conn.ListUnitsByNamesContext(ctx, []string{unitName(c)})
		if err != nil {
			return err
		}
		for _, u := range units {
			if u.ActiveState != "inactive" && u.ActiveState != "failed" {
				return fmt.Errorf("has unit %s already, %s, %q: linux.cgroupsPath %q: %w", u.Name, u.ActiveState, u.Description, cgroupsPath, errdefs.ErrAlreadyExists)
			}
		}
		return nil
	})
}

// unitName is the name that libcontainer gives the scope (cgroups v0.1.0
// systemd/common.go, getUnitName).
func unitName(c *cgroups.Cgroup) string { return c.ScopePrefix + "-" + c.Name + ".scope" }
