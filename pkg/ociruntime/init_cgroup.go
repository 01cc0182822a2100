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
	"unsafe"

	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/ociruntime/initreexec"
)

// initCgroup is the cgroup manager of a container while libcontainer starts its init. libcontainer makes the cgroup and
// moves init there, which takes the kernel several milliseconds. With this manager init enters by itself
// (initreexec/join.c; docs/decisions/0008). If it cannot, libcontainer moves it, or says why that fails.
type initCgroup struct {
	cgroups.Manager
	socket, initSocket *os.File // the ends of a pair; init inherits its own
}

// installInitCgroup makes an initCgroup the manager of lc, which is about to start init, until uninstall is called.
// Where init cannot enter by itself it does nothing.
func installInitCgroup(lc *libcontainer.Container, init *libcontainer.Process) (uninstall func(), err error) {
	manager := managerOf(lc)
	if manager == nil || !canEnter(lc.Config()) {
		return func() {}, nil
	}
	own := *manager
	i, err := newInitCgroup(own)
	if err != nil {
		return nil, err
	}
	if err := i.sendRequest(); err != nil {
		i.close()
		log.L.WithError(err).WithField("container", lc.ID()).Debug("init is moved into its cgroup")
		return func() {}, nil
	}
	*manager, init.PidfdSocket = i, i.initSocket
	return func() {
		*manager, init.PidfdSocket = own, nil
		i.close() // again, unless init was not started
	}, nil
}

func newInitCgroup(m cgroups.Manager) (*initCgroup, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	return &initCgroup{m, os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")}, nil
}

// canEnter is false for scopes, which systemd makes with a process in them; for a shim that may make no cgroup; and for
// the classes of Intel RDT, into which libcontainer puts the process that it started, which may have ended by then.
func canEnter(config configs.Config) bool {
	return !config.Cgroups.Systemd && !config.RootlessCgroups && config.IntelRdt == nil
}

// managerOf is where lc has its cgroup manager, a private field; nil if another version of libcontainer has it
// elsewhere.
func managerOf(lc *libcontainer.Container) *cgroups.Manager {
	field := reflect.ValueOf(lc).Elem().FieldByName("cgroupManager")
	if !field.IsValid() || field.Type() != reflect.TypeFor[cgroups.Manager]() {
		return nil
	}
	return (*cgroups.Manager)(unsafe.Pointer(field.UnsafeAddr()))
}

// close may be called again.
func (i *initCgroup) close() {
	_ = i.socket.Close()
	_ = i.initSocket.Close()
}

// Apply implements cgroups.Manager for the process that libcontainer has just started.
func (i *initCgroup) Apply(pid int) error {
	defer i.close()          // init continues
	_ = i.initSocket.Close() // init has its own; when init dies, the other end reads EOF
	const nobody = -1        // makes the cgroup and moves no process (cgroups/utils.go, WriteCgroupProc)
	if err := i.Manager.Apply(nobody); err != nil {
		return err
	}
	if err := i.awaitEntry(); err != nil {
		log.L.WithError(err).WithField("pid", pid).Debug("init does not enter its cgroup by itself: it is moved")
		return i.Manager.Apply(pid)
	}
	return nil
}

// sendRequest tells init, which does not run yet, what to enter: it enters cgroups of v1 as soon as they exist.
func (i *initCgroup) sendRequest() error {
	const unifiedName = ""            // among the names of v1's controllers, in hybrid mode
	paths := maps.Clone(i.GetPaths()) // may be the manager's own
	unified := paths[unifiedName]
	delete(paths, unifiedName)
	v1 := slices.Compact(slices.Sorted(maps.Values(paths)))
	request := strings.Join(append([]string{unified}, v1...), "\x00") + "\x00"
	if len(request) > initreexec.RequestMax || len(v1) > initreexec.V1Max {
		return fmt.Errorf("paths of the cgroup: %w", unix.E2BIG)
	}
	_, err := i.socket.WriteString(request)
	return err
}

// awaitEntry tells init that the cgroup exists, and returns when init is in it.
func (i *initCgroup) awaitEntry() error {
	if _, err := i.socket.Write([]byte{1}); err != nil {
		return err
	}
	var answer [4]byte
	if _, err := io.ReadFull(i.socket, answer[:]); err != nil {
		return fmt.Errorf("init does not answer: %w", err)
	}
	if errno := unix.Errno(binary.NativeEndian.Uint32(answer[:])); errno != 0 {
		return errno
	}
	return nil
}
