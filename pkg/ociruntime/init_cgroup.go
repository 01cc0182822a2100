// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/ociruntime/initreexec"
)

// birth is the cgroup manager of a container while libcontainer starts its init. libcontainer makes the cgroup and moves
// init there; with this, init enters by itself (initreexec/join.c), which spares a wait of several milliseconds. Where it
// fails, libcontainer's way says why.
type birth struct {
	cgroups.Manager
	config       *configs.Config
	ours, theirs *os.File // the ends of a socket; init has theirs
	rules        earlyDevices
}

// beBorn gives lc, which is about to start init, a birth as its manager where it can have one. end closes what is open, and
// gives lc back its own.
func beBorn(lc *libcontainer.Container, init *libcontainer.Process) (end func(), err error) {
	manager, config := managerOf(lc), lc.Config()
	if manager == nil || !entersItself(config) {
		return func() {}, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	own := *manager
	b := &birth{Manager: own, config: &config, ours: os.NewFile(uintptr(pair[0]), "socket"), theirs: os.NewFile(uintptr(pair[1]), "socket")}
	b.announce()
	*manager, init.PidfdSocket = b, b.theirs
	return func() {
		*manager, init.PidfdSocket = own, nil
		b.close() // init was not started
		b.rules.wait()
	}, nil
}

// entersItself is false for scopes, which systemd makes with a process in them; for who may make no cgroup; and for the
// classes of Intel RDT, into which libcontainer puts the process that it started, which may have ended by then.
func entersItself(config configs.Config) bool {
	return !config.Cgroups.Systemd && !config.RootlessCgroups && config.IntelRdt == nil
}

// close may be called again.
func (b *birth) close() {
	_ = b.ours.Close()
	_ = b.theirs.Close()
}

// managerOf is where lc has its cgroup manager, which libcontainer lets nobody choose; nil if it is elsewhere in another
// version of libcontainer.
func managerOf(lc *libcontainer.Container) *cgroups.Manager {
	field := reflect.ValueOf(lc).Elem().FieldByName("cgroupManager")
	if !field.IsValid() || field.Type() != reflect.TypeFor[cgroups.Manager]() {
		return nil
	}
	return (*cgroups.Manager)(unsafe.Pointer(field.UnsafeAddr()))
}

// Apply implements cgroups.Manager for the process that libcontainer has just started.
func (b *birth) Apply(pid int) error {
	defer b.close()      // init goes on
	_ = b.theirs.Close() // init has its own: when that dies there is an end to read
	const nobody = -1    // makes the cgroup (cgroups/utils.go, WriteCgroupProc)
	if err := b.Manager.Apply(nobody); err != nil {
		return err
	}
	if err := b.ask(); err != nil {
		log.L.WithError(err).WithField("pid", pid).Debug("init does not enter its cgroup by itself: it is moved")
		return b.Manager.Apply(pid)
	}
	b.setRules()
	return nil
}

// setRules begins to set device rules where that may be done before Set.
func (b *birth) setRules() {
	if unified, early, late := b.places(); len(early) == 0 && len(late) == 0 && canSetDevicesEarly(b.config) {
		b.rules.begin(unified, b.config.Cgroups.Resources)
	}
}

// Set implements cgroups.Manager, but for device rules that are set.
func (b *birth) Set(r *cgroups.Resources) error {
	if b.rules.take() {
		defer func(skip bool) { r.SkipDevices = skip }(r.SkipDevices) // r is kept for later
		r.SkipDevices = true
	}
	return b.Manager.Set(r)
}

// Destroy implements cgroups.Manager.
func (b *birth) Destroy() error {
	b.rules.wait() // they are for this cgroup, and not for a later one of that name
	return b.Manager.Destroy()
}

// announce has init make and enter cgroups of version 1 as soon as it runs, while this process does what has to be done before ask. What
// fails is tried again then.
func (b *birth) announce() {
	unified, early, late := b.places()
	if _, err := request(initreexec.Enter, entering(unified, early, late)); err != nil || len(early) == 0 {
		return // who was told to make cgroups and not to enter takes them back
	}
	_ = b.send(initreexec.Make, early)
}

// places are the directories of the cgroup: that of version 2, or "", and those of version 1. Nobody can be in a cpuset that has no CPUs,
// which the manager gives to it, so that one comes late.
func (b *birth) places() (unified string, early, late []string) {
	const unifiedName = ""            // among the names of version 1's controllers, in hybrid mode
	paths := maps.Clone(b.GetPaths()) // theirs may be the manager's own
	unified = paths[unifiedName]
	delete(paths, unifiedName)
	for _, dir := range slices.Compact(slices.Sorted(maps.Values(paths))) {
		if dir == paths["cpuset"] {
			late = append(late, dir)
		} else {
			early = append(early, dir)
		}
	}
	return unified, early, late
}

// send sends a request to init, which may not run yet.
func (b *birth) send(letter byte, dirs []string) error {
	message, err := request(letter, dirs)
	if err == nil {
		_, err = b.ours.Write(message)
	}
	return err
}

// request is what join.h says.
func request(letter byte, dirs []string) ([]byte, error) {
	message := append([]byte{letter}, strings.Join(dirs, "\x00")...)
	message = append(message, 0)
	if len(message) > initreexec.RequestMax {
		return nil, fmt.Errorf("%d bytes of paths: %w", len(message), unix.E2BIG)
	}
	return message, nil
}

func entering(unified string, early, late []string) []string {
	return slices.Concat([]string{unified}, early, late)
}

// ask returns when init is in the cgroup.
func (b *birth) ask() error {
	if err := b.send(initreexec.Enter, entering(b.places())); err != nil {
		return err
	}
	var answer [4]byte
	if _, err := io.ReadFull(b.ours, answer[:]); err != nil {
		return fmt.Errorf("init does not answer: %w", err)
	}
	if errno := unix.Errno(binary.NativeEndian.Uint32(answer[:])); errno != 0 {
		return errno
	}
	return nil
}

// earlyDevices gives a cgroup of version 2 its device rules, which are a program that the kernel checks and compiles first, while init
// does something else. libcontainer has init wait for that.
type earlyDevices struct {
	done sync.WaitGroup
	set  bool // guarded by done
}

// begin begins in the background. take or wait must be called.
func (e *earlyDevices) begin(dir string, r *cgroups.Resources) {
	e.done.Go(func() { e.set = cgroups.DevicesSetV2(dir, r) == nil })
}

func (e *earlyDevices) wait() { e.done.Wait() }

// take returns, once, whether the rules are set. Where they could not be, who sets them again hears why.
func (e *earlyDevices) take() bool {
	e.wait()
	set := e.set
	e.set = false
	return set
}

// canSetDevicesEarly is false where init may make or open a device for the container that the container itself may not: it does so before there
// are rules. Mounts of some file systems open one, and so may what stands for a device in a user namespace. Making one is denied by rules that
// deny some devices and not all (runc libcontainer/specconv, AllowedDevices; cgroups/devices, emulator).
func canSetDevicesEarly(config *configs.Config) bool {
	withoutDevice := []string{"bind", "cgroup", "cgroup2", "devpts", "mqueue", "proc", "sysfs", "tmpfs"}
	r := config.Cgroups.Resources
	return r != nil && cgroups.DevicesSetV2 != nil && !config.Namespaces.Contains(configs.NEWUSER) &&
		!slices.ContainsFunc(r.Devices, func(d *devices.Rule) bool { return !d.Allow && d.Type != devices.WildcardDevice }) &&
		!slices.ContainsFunc(config.Mounts, func(m *configs.Mount) bool { return !slices.Contains(withoutDevice, m.Device) })
}
