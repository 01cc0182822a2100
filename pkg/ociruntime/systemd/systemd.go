// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package systemd adds to libcontainer's scopes what libcontainer leaves out: names are checked before anything is
// made, each question to systemd has a time limit, and systemd gets the values that it writes again by itself.
//
// libcontainer's calls over D-Bus have no time limit (cgroups v0.1.0 systemd/common.go), and hold a lock of the
// container meanwhile. So [Await] is called before each of them.
package systemd

import (
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
	conn, err := connect(ctx, dbus.NewSystemConnectionContext, dbus.NewSystemdConnectionContext)
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

// connect connects to the system bus, or to systemd's own socket. It tries again while the backlog of either is full,
// as where many pods start at the same time: with unix sockets that is EAGAIN (unix(7)). libcontainer does so, too
// (cgroups v0.1.0 systemd/dbus.go, newConnection).
func connect(ctx context.Context, bus, private func(context.Context) (*dbus.Conn, error)) (*dbus.Conn, error) {
	const longest = time.Second
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, longest) {
		conn, err := bus(ctx)
		if err == nil {
			return conn, nil
		}
		conn, privateErr := private(ctx)
		if privateErr == nil {
			return conn, nil
		}
		err = errors.Join(err, privateErr)
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
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

// unitForm and unitLimit are those of systemd.unit(5). A unit with @ in its name would be an instance of a template.
var unitForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+$`) })

const unitLimit = 255

// CheckPath refuses a cgroupsPath that is not slice:prefix:name. For an empty one libcontainer makes up a name.
func CheckPath(cgroupsPath string) error {
	if cgroupsPath != "" && strings.Count(cgroupsPath, ":") != 2 {
		return fmt.Errorf("config.json: linux.cgroupsPath %q: must be slice:prefix:name for the systemd cgroup driver: %w",
			cgroupsPath, errdefs.ErrInvalidArgument)
	}
	return nil
}

// ExpandSlice returns the path of a slice from the root of a hierarchy. It refuses what is no name of a slice, and a
// slice whose directory, or that of a slice above it, systemd gives another name.
func ExpandSlice(name string) (string, error) {
	expanded, err := systemd.ExpandSlice(name)
	if err != nil || !unitForm().MatchString(name) || len(name) > unitLimit {
		return "", errors.New("must be the name of a slice, such as a-b.slice")
	}
	for element := range strings.SplitSeq(expanded, "/") {
		if isEscaped(element) {
			return "", fmt.Errorf("must not have a part like %q: %s", element, escaped)
		}
	}
	return expanded, nil
}

const escaped = "systemd has the cgroup elsewhere if a name begins with _, . or cgroup., or with a controller and a dot"

// isEscaped reports whether systemd puts an underscore before the name of a unit to name its directory (systemd 252,
// cgroup-util.c, cg_needs_escape). libcontainer does not: it would make a second, empty cgroup.
func isEscaped(name string) bool {
	first, _, dotted := strings.Cut(name, ".")
	switch first {
	case "cgroup", "cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids", "bpf-firewall", "bpf-devices",
		"bpf-foreign", "bpf-socket-bind", "bpf-restrict-network-interfaces":
		return dotted
	}
	return strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".")
}

// checkName refuses names that systemd would refuse, or have in another directory.
func checkName(cgroupsPath string, c *cgroups.Cgroup) error {
	refuse := func(what, name, want string) error {
		return fmt.Errorf("config.json: linux.cgroupsPath %q: %s %q %s: %w",
			cgroupsPath, what, name, want, errdefs.ErrInvalidArgument)
	}
	if slice := c.Parent; slice != "" { // else it is system.slice
		if _, err := ExpandSlice(slice); err != nil {
			return refuse("slice", slice, err.Error())
		}
	}
	switch unit := unitName(c); {
	case c.Name == "":
		return refuse("name", c.Name, "must not be empty")
	case strings.HasSuffix(c.Name, ".slice"):
		return refuse("name", c.Name, "must not be that of a slice")
	case !unitForm().MatchString(unit) || len(unit) > unitLimit:
		return refuse("unit", unit, fmt.Sprintf(`must be at most %d letters, digits and :_.\-`, unitLimit))
	case isEscaped(unit):
		return refuse("unit", unit, "must have another name: "+escaped)
	}
	return nil
}
