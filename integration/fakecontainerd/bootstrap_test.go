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

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
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

func TestBootstrap_TakesOverASocketThatNobodyServes(t *testing.T) {
	f := newFake(t)
	b := f.Bundle("c1", nil, "sleep", "1000")
	s := f.Shim(b)
	f.Must(unix.Kill(s.Pid, unix.SIGKILL), "kill the shim")
	harness.Eventually(t, "the shim ends", func() error {
		if harness.Alive(s.Pid) {
			return errors.New("it lives")
		}
		return nil
	})
	if _, err := os.Stat(fakecontainerd.SocketOf(s.Answer)); err != nil {
		t.Fatalf("socket of a killed shim: %v, want it left for this test", err)
	}
	again := f.Shim(b)
	if again.Pid == s.Pid {
		t.Errorf("shim %d is the one that was killed", again.Pid)
	}
	again.Run(b)
	again.KillAndDelete(b)
	again.End()
}

func TestLog_UnreadOrAbsentStopsNothing(t *testing.T) {
	harness.OursOnly(t, "it works without a log")
	for _, tt := range []struct {
		name    string
		prepare func(f *fakecontainerd.Fake, path string)
	}{
		{"absent", func(f *fakecontainerd.Fake, path string) { f.Must(os.Remove(path), "remove") }},
		{"full", func(f *fakecontainerd.Fake, path string) {
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			f.Must(err, "open")
			f.Cleanup(func() { _ = unix.Close(fd) })
			for err == nil {
				_, err = unix.Write(fd, make([]byte, 4096))
			}
			if !errors.Is(err, unix.EAGAIN) {
				f.Fatalf("fill the fifo: %v", err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			b := f.Bundle("c1", nil, "sleep", "1000")
			tt.prepare(f, filepath.Join(b.Path, "log"))
			s := f.Shim(b)
			s.Run(b)
			f.Must(unix.Kill(s.Pid, unix.SIGUSR1), "ask for stacks, which are written to the log")
			s.RunExec("c1", "e1", "true")
			s.KillAndDelete(b)
			s.End()
		})
	}
}

func TestInfo_AnswersNameVersionAndFeatures(t *testing.T) {
	cmd := exec.Command(env.Shim, "-info")
	cmd.Env = []string{"PATH=" + env.Path()}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("-info: %v, stderr %q", err, &stderr)
	}
	var info types.RuntimeInfo
	if err := proto.Unmarshal(out, &info); err != nil {
		t.Fatalf("-info %q: %v", out, err)
	}
	if info.GetName() != env.Runtime || info.GetVersion().GetVersion() == "" {
		t.Errorf("-info = %v, want name %q and a version", &info, env.Runtime)
	}
	v, err := typeurl.UnmarshalAny(info.GetFeatures())
	if f, ok := v.(*features.Features); err != nil || !ok || f.Linux == nil || len(f.Linux.Namespaces) == 0 {
		t.Errorf("features of -info = %v, %v, want OCI features with namespaces", v, err)
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

func TestVersion_IsForPeopleAndGoesToStdout(t *testing.T) {
	want := "Version:"
	if harness.Runtime() == harness.Ours {
		version, err := os.ReadFile("../../VERSION")
		if err != nil {
			t.Fatal(err)
		}
		want += "  " + strings.TrimSpace(string(version)) // the commit follows
	}
	for _, arg := range []string{"-v", "--version"} {
		out, err := exec.Command(env.Shim, arg).Output()
		if arg != "-v" && harness.Runtime() != harness.Ours {
			continue
		}
		if err != nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "Revision:") {
			t.Errorf("%s = %q, %v, want %q and a revision", arg, out, err, want)
		}
	}
}
