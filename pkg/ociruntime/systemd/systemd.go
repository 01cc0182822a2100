// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package systemd adds to libcontainer's scopes what libcontainer leaves out: names are checked before anything is
// made, and systemd gets the values that it writes again by itself. libcontainer's questions to systemd have no time
// limit (cgroups v0.1.0 systemd/common.go), so [Await] is called before each.
package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	"golang.org/x/sys/unix"
)

// timeout bounds one question to systemd. A refused Update asks twice, since it restores the former values.
const timeout = 10 * time.Second

var (
	// errAbsent means that nobody listens, so libcontainer's calls fail immediately.
	errAbsent = fmt.Errorf("cannot be reached over D-Bus; look at systemctl status dbus.service: %w",
		errdefs.ErrFailedPrecondition)
	// ErrSilent is the error of each function here when somebody listens but does not answer.
	ErrSilent = fmt.Errorf("does not answer over D-Bus; look at systemctl status dbus.service: %w",
		errdefs.ErrFailedPrecondition)
)

// ask calls question with a connection to systemd that ends with ctx, or after timeout.
func ask(ctx context.Context, question func(context.Context, *dbus.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrSilent)
	defer cancel()
	conn, err := connect(ctx)
	if err == nil {
		defer conn.Close()
		err = question(ctx, conn)
	} else {
		err = fmt.Errorf("%w: %w", errAbsent, err)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("systemd %w", err)
	}
	return nil
}

// connect connects to the system bus, or to systemd's own socket. It tries again while the backlog of a socket is full,
// which with unix sockets is EAGAIN (unix(7)), as where many pods start at the same time.
func connect(ctx context.Context) (*dbus.Conn, error) {
	const interval = 50 * time.Millisecond
	for {
		conn, err := dbus.NewWithContext(ctx)
		if !errors.Is(err, unix.EAGAIN) || ctx.Err() != nil {
			return conn, err
		}
		<-time.After(interval)
	}
}

// Await returns nil once systemd answers, or if it cannot be reached: libcontainer then does without it.
func Await(ctx context.Context) error {
	err := ask(ctx, func(_ context.Context, conn *dbus.Conn) error {
		_, err := conn.GetManagerProperty("Version") // takes no context: closing the connection ends it
		return err
	})
	if errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

// oldest is the version of systemd that was tested. libcontainer asks only whether it is 240 or later.
const oldest = 247

// Prepare refuses a scope that libcontainer would refuse only when the container is half made; libcontainer would then
// stop the unit of that name, whoever owns it. It adds to c the properties that libcontainer leaves out and, on cgroup
// v1, those of devices, which libcontainer sets when init is already in its cgroups: if the slice has none yet, systemd
// 252 and 257 then move init from the scope's cgroup of devices to that of the slice, where it may use all devices.
func Prepare(ctx context.Context, cgroupsPath string, c *cgroups.Cgroup) error {
	if err := checkName(cgroupsPath, c); err != nil {
		return err
	}
	if !systemd.IsRunningSystemd() {
		return fmt.Errorf("linux.cgroupsPath %q: asks for a scope of systemd, which this machine was not booted with: %w",
			cgroupsPath, errdefs.ErrFailedPrecondition)
	}
	unified := cgroups.IsCgroup2UnifiedMode()
	c.SystemdProps = append(c.SystemdProps, properties(c.Resources, unified)...)
	if !unified && systemd.GenerateDeviceProps != nil {
		devices, err := systemd.GenerateDeviceProps(c.Resources, oldest)
		if err != nil {
			return fmt.Errorf("linux.resources.devices: %w", err)
		}
		c.SystemdProps = append(c.SystemdProps, devices...)
	}
	return ask(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		units, err := conn.ListUnitsByNamesContext(ctx, []string{unitName(c)})
		if err != nil {
			return err
		}
		for _, u := range units {
			if u.ActiveState != "inactive" && u.ActiveState != "failed" {
				return fmt.Errorf("has unit %s already, %s, %q: linux.cgroupsPath %q: %w",
					u.Name, u.ActiveState, u.Description, cgroupsPath, errdefs.ErrAlreadyExists)
			}
		}
		return nil
	})
}

// UnitExists reports whether err says that systemd has a unit of that name already.
func UnitExists(err error) bool {
	refused, ok := errors.AsType[godbus.Error](err)
	return ok && refused.Name == "org.freedesktop.systemd1.UnitExists" // systemd, bus-common-errors.h
}

// unitName returns the name that libcontainer gives the scope (cgroups v0.1.0 systemd/common.go, getUnitName).
func unitName(c *cgroups.Cgroup) string { return c.ScopePrefix + "-" + c.Name + ".scope" }

// isUnit reports whether name can be that of a unit, by systemd.unit(5). One with @ would be an instance of a template.
func isUnit(name string) bool { return unitForm().MatchString(name) && len(name) <= unitLimit }

var unitForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+$`) })

const unitLimit = 255

// ExpandSlice returns the path of a slice from the root of a hierarchy. It refuses what is no name of a slice.
func ExpandSlice(name string) (string, error) {
	expanded, err := systemd.ExpandSlice(name)
	if err != nil || !isUnit(name) {
		return "", errors.New("must be the name of a slice, such as a-b.slice")
	}
	return expanded, nil
}

// checkName refuses names that systemd would refuse.
func checkName(cgroupsPath string, c *cgroups.Cgroup) error {
	_, err := ExpandSlice(cmp.Or(c.Parent, "system.slice"))
	if err == nil && c.Name != "" && !strings.HasSuffix(c.Name, ".slice") && isUnit(unitName(c)) {
		return nil
	}
	return fmt.Errorf(`config.json: linux.cgroupsPath %q: must be SLICE:PREFIX:NAME, with nothing or a-b.slice as SLICE, `+
		`and at most %d letters, digits and :_.\- in PREFIX-NAME.scope: %w`,
		cgroupsPath, unitLimit, errdefs.ErrInvalidArgument)
}
