// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

func TestListen_RefusesSettings(t *testing.T) {
	const key = "config.json: annotations: " + settings.Prefix + "listen"
	for _, tc := range []struct {
		annotation string // "-" is none
		option     string
		want       string
	}{
		{"", "", key + `: 0 sockets: must be 1 to 64`},
		{"tcp://x", "", key + `: "tcp://x": must be IP:PORT`},
		{"tcp://1.2.3.4:5", "", key + ` "tcp://1.2.3.4:5": needs a PID namespace`},
		{"-", "udp://x", `runtime options: Listen: "udp://x": must be IP:PORT`},
		{"-", "unix:///x", `runtime options: Listen "unix:///x": needs a PID namespace`},
	} {
		spec := annotated("listen", tc.annotation)
		if tc.annotation == "-" {
			spec = goodSpec()
		}
		bundle := newBundle(t, spec)
		before := files(t, bundle)
		r := CreateRequest{ID: "c1", Bundle: bundle, Options: allowing(options.Options{Settings: map[string]string{"Listen": tc.option}})}
		_, err := newManager(t, &fakeEngine{}).Create(t.Context(), r)
		wantInvalid(t, err, tc.want)
		if got := files(t, bundle); got != before {
			t.Errorf("files = %q after %v, want %q", got, err, before)
		}
	}
}

// listenSpec asks for a listening socket in the host's network.
func listenSpec(value string) *specs.Spec {
	spec := annotated("listen", value)
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.PIDNamespace}}
	spec.Process.Env = []string{"LISTEN_PID=7", "A=1"}
	return spec
}

func TestListen_SocketsEndWithTheContainer(t *testing.T) {
	name := t.TempDir() + "/s"
	if len(name) > 100 {
		t.Skipf("SKIPPED: needs a temporary directory with a shorter name than %q", name)
	}
	engine := &fakeEngine{pid: os.Getpid()} // whose root is that of this process
	s := newManager(t, engine)
	create := func(id string) error {
		_, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: newBundle(t, listenSpec("a=unix://"+name+" unix://"+name+"2?type=dgram")), Options: allowing(options.Options{})})
		return err
	}
	files := 0
	engine.create = func(c process.Config) error { files = len(c.Files); return nil }
	must(t, create("c1"))
	if want := []string{"A=1", "LISTEN_FDNAMES=a:unknown", "LISTEN_FDS=2", "LISTEN_PID=1"}; files != 2 || !slices.Equal(engine.made[0].Spec.Process.Env, want) {
		t.Errorf("%d files, environment %q, want 2 and %q", files, engine.made[0].Spec.Process.Env, want)
	}
	if _, err := os.Lstat(name); err != nil {
		t.Error(err)
	}
	_, err := s.Delete(t.Context(), "c1", "")
	must(t, err)
	if _, err := os.Lstat(name); err == nil {
		t.Error("the socket is left")
	}

	// One that cannot be had undoes the container.
	must(t, os.WriteFile(name+"2", nil, 0o600))
	destroyed := 0
	engine.destroy = func() error { destroyed++; return nil }
	if err := create("c2"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("Create = %v, want that the address is in use", err)
	}
	if _, err := os.Lstat(name); err == nil || destroyed != 1 {
		t.Errorf("the first socket is left: %v; destroyed %d times", err, destroyed)
	}
	engine.create = func(process.Config) error { return io.ErrUnexpectedEOF }
	if err := create("c3"); err == nil {
		t.Error("Create with an engine that fails worked")
	}
}

func TestListen_SocketWithAPathIsOfTheContainersNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to make a network namespace")
	}
	host, err := os.Stat("/proc/self/ns/net")
	must(t, err)
	own := []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}}
	for name, namespaces := range map[string][]specs.LinuxNamespace{
		"none": own[:1], "own": own, "own with users": append(own[:2:2], specs.LinuxNamespace{Type: specs.UserNamespace}),
	} {
		spec := listenSpec("unix://" + t.TempDir() + "/s")
		spec.Linux.Namespaces = namespaces
		engine := &fakeEngine{pid: os.Getpid()}
		engine.create = func(c process.Config) error {
			fd, err := unix.IoctlRetInt(int(c.Files[0].Fd()), unix.SIOCGSKNS)
			must(t, err)
			ns := os.NewFile(uintptr(fd), "namespace")
			defer ns.Close()
			info, err := ns.Stat()
			must(t, err)
			if got, want := os.SameFile(info, host), name == "none"; got != want {
				t.Errorf("%s: of the host's network = %t, want %t", name, got, want)
			}
			for _, n := range c.Spec.Linux.Namespaces {
				if n.Path != "" {
					t.Errorf("%s: the container is told to join %s", name, n.Path)
				}
			}
			return nil
		}
		s := newManager(t, engine)
		_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, spec), Options: allowing(options.Options{})})
		must(t, err)
		_, err = s.Delete(t.Context(), "c1", "")
		must(t, err)
	}
}

func TestListen_RefusesARestoredContainer(t *testing.T) {
	_, err := newManager(t, &fakeEngine{}).Create(t.Context(), CreateRequest{ID: "c1", Checkpoint: "/image", Bundle: newBundle(t, listenSpec("unix:///x")), Options: allowing(options.Options{})})
	wantInvalid(t, err, "restored")
}

// A process of the container that is hard to kill has its sockets still when the first delete comes.
func TestListen_AnOpenSocketIsRemovedByALaterCleanup(t *testing.T) {
	t.Chdir(t.TempDir()) // an address has room for 108 bytes
	bundle := newBundle(t, goodSpec())
	root, err := os.Getwd()
	must(t, err)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "s"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	// As releases before pkg/extension wrote it.
	text := `{"Root":"/r","Sockets":[{"Volume":"` + root + `","Dir":".","Name":"s","In":{"Dev":1,"Ino":2}}]}`
	must(t, os.WriteFile(filepath.Join(bundle, "shim.json"), []byte(text), 0o600))
	for _, open := range []bool{true, false} {
		if !open {
			must(t, l.Close())
		}
		_, _, err := cleanUp(t, bundle)
		must(t, err)
		if _, err := os.Lstat("s"); (err == nil) != open {
			t.Errorf("the socket, which is open: %t, after Remove: %v", open, err)
		}
	}
}
