// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package nsholder

/*
#include "program.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// MaxHostname is the longest host name that the kernel takes.
const MaxHostname = C.NAME_SIZE

// steps says what the program was about to do, in the order of its STEP_….
var steps = [C.STEPS]string{
	C.STEP_REQUEST:      "read the request",
	C.STEP_ROOT:         "make an empty root",
	C.STEP_JOIN_NET:     "join the network namespace",
	C.STEP_JOIN_USER:    "join the user namespace",
	C.STEP_MAKE_USER:    "make a user namespace",
	C.STEP_MAKE:         "make namespaces",
	C.STEP_NAME:         "set the host name",
	C.STEP_FORK:         "make a PID namespace",
	C.STEP_GROUPS:       "setgroups",
	C.STEP_GID:          "setresgid",
	C.STEP_UID:          "setresuid",
	C.STEP_CAPABILITIES: "drop capabilities",
	C.STEP_PRIVILEGES:   "set no_new_privs",
	C.STEP_DUMPABLE:     "become undumpable",
	C.STEP_DEATH:        "set the parent's death signal",
}

// request is the program's struct request.
func (c Config) request() ([]byte, error) {
	if len(c.Hostname) > MaxHostname {
		return nil, fmt.Errorf("host name %q: must have at most %d bytes: %w", c.Hostname, MaxHostname, errdefs.ErrInvalidArgument)
	}
	var b []byte
	for _, v := range []uint32{
		flag(c.Net != nil), flag(c.User != nil), flag(c.Map != nil), uint32(c.Make), flag(c.PID),
		c.UID, c.GID, uint32(len(c.Hostname)),
	} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	name := make([]byte, MaxHostname)
	copy(name, c.Hostname)
	return append(b, name...), nil
}

func flag(set bool) uint32 {
	if set {
		return 1
	}
	return 0
}

// message is the program's struct message.
type message struct{ kind, value, step uint32 }

func readMessage(r io.Reader) (message, error) {
	var b [C.sizeof_struct_message]byte
	if n, err := r.Read(b[:]); err != nil || n != len(b) {
		return message{}, fmt.Errorf("read %d bytes from the holder: %w", n, err)
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(b[4*i:]) }
	return message{word(0), word(1), word(2)}, nil
}

// failure is the error of a MESSAGE_FAILED.
func (m message) failure() error {
	if int(m.step) >= len(steps) {
		return fmt.Errorf("step %d: %w", m.step, unix.Errno(m.value))
	}
	return fmt.Errorf("%s: %w", steps[m.step], unix.Errno(m.value))
}

// write gives the user namespace that process pid has made its mappings, see user_namespaces(7).
func (m *Mappings) write(pid int) error {
	for _, f := range []struct {
		name string
		list []specs.LinuxIDMapping
	}{{"uid_map", m.UIDs}, {"gid_map", m.GIDs}} {
		var text strings.Builder
		for _, line := range f.list {
			fmt.Fprintf(&text, "%d %d %d\n", line.ContainerID, line.HostID, line.Size)
		}
		path := fmt.Sprintf("/proc/%d/%s", pid, f.name)
		if err := os.WriteFile(path, []byte(text.String()), 0); err != nil {
			return fmt.Errorf("write %q: %w", text.String(), err)
		}
	}
	return nil
}
