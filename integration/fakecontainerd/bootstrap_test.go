// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

func TestBootstrap_AnswersEachContainerdInItsForm(t *testing.T) {
	runcOptions, err := anypb.New(&options.Options{NoNewKeyring: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name       string
		generation fakecontainerd.Generation
		options    *anypb.Any
		version    int32
	}{
		{"2.3 without options", fakecontainerd.Params, nil, 3},
		{"2.3 with options", fakecontainerd.Params, runcOptions, 3},
		{"1.7 without options", fakecontainerd.JSON, nil, 2},
		{"1.7 with options", fakecontainerd.JSON, runcOptions, 2},
		{"1.6 without options", fakecontainerd.Plain, nil, 2},
		{"1.6 with options", fakecontainerd.Plain, runcOptions, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.generation != fakecontainerd.Params {
				harness.OursOnly(t, "containerd before 2.3 works")
			}
			f := newFake(t)
			b := f.Bundle("c1", nil, "sleep", "1000")
			a, err := f.Start(b, tt.generation, tt.options)
			f.Must(err, "start")
			if a.Version != tt.version || a.Protocol != "ttrpc" {
				t.Errorf("answer %q is version %d, protocol %q, want %d and ttrpc", a.Stdout, a.Version,
					a.Protocol, tt.version)
			}
			if bytes.HasSuffix(a.Stdout, []byte("\n")) {
				t.Errorf("answer %q ends in a newline, which protobuf takes for a field", a.Stdout)
			}
			info, err := os.Stat(fakecontainerd.SocketOf(a))
			f.Must(err, "socket")
			if info.Mode() != fs.ModeSocket|0o600 {
				t.Errorf("mode of the socket is %v, want a socket of mode 0600", info.Mode())
			}
			if tt.generation == fakecontainerd.Params && filepath.Dir(fakecontainerd.SocketOf(a)) != f.Sockets {
				t.Errorf("socket is %s, want it in %s", fakecontainerd.SocketOf(a), f.Sockets)
			}
			s := f.Connect(b, a)
			s.Task = f.Dial(a.Address, fmt.Sprintf("v%d", a.Version))
			s.Run(b)
			s.KillAndDelete(b)
			s.End()
			if harness.Runtime() != harness.Ours {
				return // the runc shim leaves its socket to the delete command
			}
			harness.Eventually(t, "the socket goes", func() error {
				if _, err := os.Stat(fakecontainerd.SocketOf(a)); !errors.Is(err, fs.ErrNotExist) {
					return errors.New("it is still there")
				}
				return nil
			})
		})
	}
}

// A program with the personality UNAME26 is told that the kernel is a Linux 2.6.
func TestKernel_ThatIsTooOldIsRefused(t *testing.T) {
	harness.OursOnly(t, "says which kernel it needs")
	for _, args := range [][]string{{"-info"}, {"-namespace", "ns", "-id", "c1", "start"}} {
		cmd := exec.Command("setarch", append([]string{"--uname-2.6", env.Shim}, args...)...)
		cmd.Dir = t.TempDir() // the bundle
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "the kernel is Linux 2.6.") ||
			!strings.Contains(string(out), "5.10 is the oldest that is supported") {
			t.Errorf("%q on a kernel that is too old: %q, %v, want a sentence and an error", args, out, err)
		}
	}
	if out, err := exec.Command("setarch", "--uname-2.6", env.Shim, "-v").CombinedOutput(); err != nil {
		t.Errorf("-v on a kernel that is too old: %q, %v, want the version", out, err)
	}
}

// The kernel sends SIGHUP if the shim is stopped when start ends, since nobody else is in its process group.
func TestShim_OutlivesAHangUp(t *testing.T) {
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	f.Must(unix.Kill(s.Pid, unix.SIGHUP), "hang up")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Run(b)))
	f.Must(err, "status of the container's process")
	var ignored uint64
	_, mask, _ := strings.Cut(string(status), "SigIgn:")
	_, err = fmt.Sscanf(mask, "%x", &ignored)
	f.Must(err, "SigIgn in "+string(status))
	if ignored&(1<<(uint(unix.SIGHUP)-1)) != 0 { // what the shim ignores is inherited
		t.Errorf("the container's process ignores SIGHUP:\n%s", status)
	}
	s.KillAndDelete(b)
	s.End()
}
