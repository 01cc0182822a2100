// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/cgroups/v3"
	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/pkg/sys"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestStart_OneDaemonThatIsSetUp(t *testing.T) {
	w := newEnv(t)
	b := w.bundle("c1", "")
	leak, err := unix.Open("/dev/zero", unix.O_RDONLY, 0) // without close-on-exec, as a careless parent would
	testx.Must(t, err)
	defer func() { _ = unix.Close(leak) }() // read by nobody
	w.vars = []string{"GOMAXPROCS=2", "TTRPC_ADDRESS=/env.ttrpc"}

	own, err := sys.GetOOMScoreAdj(os.Getpid())
	testx.Must(t, err)
	before := unix.Umask(0o077) // containerd's, on a hardened node
	defer unix.Umask(before)
	got := w.shim(b, w.params("c1"), "start")
	daemons := w.daemons()
	if got.code != 0 || got.stderr != "" || len(daemons) != 1 {
		t.Fatalf("start = %+v with %d daemons, want exit code 0, silence, 1 daemon", got, len(daemons))
	}
	d := daemons[0]
	path := d.SocketPath
	if want := "\x08\x03\x12" + string(rune(len("unix://"+path))) + "unix://" + path + "\x1a\x05ttrpc"; got.stdout != want {
		t.Errorf("answer = %q, want %q", got.stdout, want)
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"namespace, id", d.Namespace + " " + d.ID, "ns1 c1"},
		{"bundle", d.Bundle, b},
		{"working directory, which must not go with a container", d.Cwd, "/"},
		{"containerd's addresses", d.Address + " " + d.TTRPCAddress, "/p.sock /p.ttrpc"},
		{"debug", d.Debug, true},
		{"arguments", strings.Join(d.Args, " "), "containerd-shim-sandbox-v1 -namespace ns1 -id c1 -address /p.sock -debug"},
		{"stdio", d.Stdio, [3]string{"/dev/null", "/dev/null", "/dev/null"}},
		{"descriptors for children", strings.Join(d.Inheritable, " "), ""},
		{"a descriptor of the parent's", slices.Contains(d.Open, "/dev/zero"), false},
		{"process group", d.Pgid, d.Pid},
		{"umask, and that of who started it", [2]int{d.Umask, d.StarterUmask}, [2]int{0o022, 0o077}},
		{"who called start, which tells the generation of containerd", d.Caller, os.Getpid()},
		{"GOMAXPROCS", d.Gomaxprocs, "1"},
		{"GODEBUG", d.Godebug, os.Getenv("GODEBUG")},
		{"OOM score, one above ours", d.OOMScoreAdj, fmt.Sprintln(min(own+1, 1000))},
	} {
		if c.got != c.want {
			t.Errorf("%s of the daemon = %v, want %v", c.what, c.got, c.want)
		}
	}
	if d.Sid == d.Pid {
		t.Error("the daemon leads a session: it would take a controlling terminal")
	}
	if got, want := mode(t, path), os.FileMode(0o600); got.Perm() != want {
		t.Errorf("mode of the socket = %v, want %v", got.Perm(), want)
	}
	if got, want := mode(t, filepath.Dir(path)), os.FileMode(0o700); got.Perm() != want {
		t.Errorf("mode of the socket directory = %v, want %v", got.Perm(), want)
	}
	if got, err := os.ReadFile(filepath.Join(b, "address")); err != nil || string(got) != "unix://"+path {
		t.Errorf("address file = %q, %v, want %q", got, err, "unix://"+path)
	}
	w.end(d)
	if left := w.sockets(); len(left) != 0 {
		t.Errorf("after the daemon's end the socket directory holds %q, want nothing", left)
	}
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	st, err := os.Stat(path)
	testx.Must(t, err)
	return st.Mode()
}

func TestStart_ManyAtOnceShareOneDaemon(t *testing.T) {
	w := newEnv(t)
	const n = 8
	var wg sync.WaitGroup
	answers := make([]result, n)
	for i := range n {
		b := w.bundle(fmt.Sprintf("c%d", i), "pod1")
		wg.Go(func() { answers[i] = w.shim(b, w.params(filepath.Base(b)), "start") })
	}
	wg.Wait()
	for i, a := range answers {
		if a != answers[0] || a.code != 0 || a.stderr != "" {
			t.Errorf("start %d = %+v, want success and the answer of start 0, %+v", i, a, answers[0])
		}
	}
	if got := len(w.daemons()); got != 1 {
		t.Errorf("%d daemons, want 1", got)
	}
}

func TestDaemon_ThatFailsLogsWhyAndLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		how, want string
		sockets   int
	}{
		{"fail", "no engine today", 0},
		{"die", "", 1}, // the next start replaces it
		{"panic", "panic: in serve", 0},
	} {
		t.Run(tt.how, func(t *testing.T) {
			w := newEnv(t)
			w.vars = []string{daemonEnvar + "=" + tt.how}
			b := w.bundle("c1", "")
			reader, err := unix.Open(filepath.Join(b, "log"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			testx.Must(t, err)
			defer func() { _ = unix.Close(reader) }() // the test's own end
			if got := w.shim(b, w.params("c1"), "start"); got.code != 0 {
				t.Fatalf("start = %+v", got)
			}
			w.wait(w.daemons()[0])
			if got := drain(t, reader); !strings.Contains(got, tt.want) {
				t.Errorf("log = %q, want %q in it", got, tt.want)
			}
			if left := w.sockets(); len(left) != tt.sockets {
				t.Errorf("the socket directory holds %q, want %d", left, tt.sockets)
			}
			w.vars = nil
			if got := w.shim(b, w.params("c1"), "start"); got.code != 0 {
				t.Errorf("the next start = %+v", got)
			}
		})
	}
}

// It has made the socket, and no daemon: what it leaves on disk is a name on which nobody listens.
func TestStart_AfterOneThatWasKilled(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"before it listened": func(path string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Close(fd))
		},
		"before it served": func(path string) error {
			l, err := listen(t.Context(), path)
			if err != nil {
				return err
			}
			die(t, l)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t)
			b := w.bundle("c1", "")
			r := request{Daemon: Daemon{Args: Args{Namespace: "ns1", ID: "c1", Address: "/p.sock"}, Bundle: b}, socketDir: w.mkdir("s")}
			for _, action := range []string{"delete", "start"} {
				testx.Must(t, r.recordSocket())
				path := r.SocketPath
				testx.Must(t, make(path))
				if action == "delete" {
					if got := w.shim(b, nil, "delete"); got.code != 0 || got.stderr != "" {
						t.Errorf("delete = %+v", got)
					}
					if left := w.sockets(); len(left) != 0 {
						t.Errorf("delete left %q", left)
					}
					continue
				}
				if got := w.shim(b, w.params("c1"), "start"); got.code != 0 || !strings.Contains(got.stdout, path) {
					t.Errorf("start = %+v, want the address of %s", got, path)
				}
				if got := len(w.daemons()); got != 1 {
					t.Errorf("%d daemons, want 1", got)
				}
			}
		})
	}
}

func TestStart_PutsTheDaemonIntoTheShimCgroup(t *testing.T) {
	w := newEnv(t)
	name := fmt.Sprintf("shim-test-%d", os.Getpid())
	top := "/sys/fs/cgroup"
	if cgroups.Mode() != cgroups.Unified {
		top += "/pids" // it is enough that one hierarchy has it
	}
	made := filepath.Join(top, name)
	if err := os.Mkdir(made, 0o700); err != nil {
		t.Fatalf("this test needs root and a writable cgroup: %v", err)
	}
	t.Cleanup(func() {
		w.endDaemons()
		if err := os.Remove(made); err != nil {
			t.Error(err)
		}
	})
	with := func(cgroup string) func(*bootstrap.BootstrapParams) {
		return func(p *bootstrap.BootstrapParams) {
			testx.Must(t, p.AddExtension(&runcoptions.Options{ShimCgroup: cgroup}))
		}
	}
	b := w.bundle("c1", "")
	if got := w.shim(b, w.params("c1", with("/"+name)), "start"); got.code != 0 {
		t.Fatalf("start = %+v", got)
	}
	if got := w.daemons()[0].Cgroup; !strings.Contains(got, ":/"+name+"\n") {
		t.Errorf("cgroups of the daemon = %q, want %q among them", got, "/"+name)
	}
	b = w.bundle("c2", "")
	got := w.shim(b, w.params("c2", with("/"+name+"-none")), "start")
	if got.code != 1 || !strings.Contains(got.stderr, name+"-none") || len(w.sockets()) != 1 {
		t.Errorf("start in a cgroup that is not there = %+v with sockets %q, want an error that names it and no new socket", got, w.sockets())
	}
}

func TestDaemon_CrashReachesTheLogAndNeverHangs(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("log full %t", full), func(t *testing.T) {
			w := newEnv(t)
			w.vars = []string{daemonEnvar + "=crash"}
			b := w.bundle("c1", "")
			reader, err := unix.Open(filepath.Join(b, "log"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			testx.Must(t, err)
			defer func() { _ = unix.Close(reader) }() // the test's own end
			if full {
				fill(t, reader)
			}
			// The crash comes after the daemon's first word, so start has nothing to report.
			if got := w.shim(b, w.params("c1"), "start"); got.code != 0 {
				t.Fatalf("start = %+v", got)
			}
			status := w.wait(w.daemons()[0])
			if !status.Exited() || status.ExitStatus() != 2 {
				t.Errorf("the daemon's status = %#x, want exit code 2 of a crash", status)
			}
			if got := drain(t, reader); !full && !strings.Contains(got, "panic: in a goroutine") {
				t.Errorf("log = %q, want the panic in it", got)
			}
		})
	}
}
