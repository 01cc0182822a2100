// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// cleaned is what --clean prints.
type cleaned struct{ Removed, Gone, Left []outcome }

type outcome struct {
	Check, Path, Reason, Fix string
	Pid                      int
}

func (o outcome) String() string { return fmt.Sprintf("%s %s %s", o.Check, o.Path, o.Reason) }

// clean runs "sandboxctl doctor --clean --yes", which must end with a status.
func (p *patient) clean(status int) cleaned {
	p.Helper()
	out, _ := p.ends(status, nil, p.command("--clean", "--yes", "-o", "json")...)
	var c cleaned
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		p.Fatalf("--clean printed %q: %v", out, err)
	}
	return c
}

// ends runs a program that must end with a status, and returns what it printed.
func (p *patient) ends(status int, stdin io.Reader, argv ...string) (stdout, stderr string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &said
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited || cmd.ProcessState.ExitCode() != status {
		p.Fatalf("%q: %v, want status %d\n%s%s", argv, err, status, out.String(), said.String())
	}
	return out.String(), said.String()
}

// wantRemoved fails the test unless leftovers of these checks were removed, and none is left.
func (p *patient) wantRemoved(c cleaned, checks ...string) {
	p.Helper()
	var got []string
	for _, o := range c.Removed {
		got = append(got, o.Check)
	}
	if strings.Join(got, " ") != strings.Join(checks, " ") || len(c.Left) > 0 {
		p.Errorf("removed %v, left %v, want that %v are removed", c.Removed, c.Left, checks)
	}
	p.wantNothingLeft(p.examine(-1))
}

// wantTraceless looks for anything with the name of a container: processes, mounts, cgroups, files.
func (p *patient) wantTraceless(id string) {
	p.Helper()
	work := filepath.Join(p.Dir, "root/io.containerd.runtime.v2.task", p.namespace)
	for _, leak := range (harness.Scope{Namespace: p.namespace, Dirs: []string{p.bundles(), work}, MountsIn: p.bundles()}).Leaks() {
		if strings.Contains(leak, id) {
			p.Errorf("left behind: %s", leak)
		}
	}
}

// ages makes all sockets older than those on which a shim may be about to listen, and waits until so many leftovers are
// seen: while a process is dying, its socket may still be open.
func (p *patient) ages(leftovers int) {
	p.Helper()
	sockets, err := filepath.Glob(filepath.Join(p.Sockets, "*"))
	p.must(err)
	for _, socket := range sockets {
		p.must(os.Chtimes(socket, time.Time{}, time.Now().Add(-time.Minute)))
	}
	harness.Eventually(p, "leftovers are seen", func() error {
		if r := p.examine(-1); len(r.Leftovers) != leftovers {
			return fmt.Errorf("%+v, want %d", r.Leftovers, leftovers)
		}
		return nil
	})
}

func (p *patient) sockets() int {
	p.Helper()
	entries, err := os.ReadDir(p.Sockets)
	p.must(err)
	return len(entries)
}

// bystander runs a container that nothing may happen to.
func (p *patient) bystander() (check func()) {
	p.Helper()
	shim := p.run("bystander")
	pid := p.pid("bystander")
	return func() {
		p.Helper()
		if !harness.Alive(shim) || p.pid("bystander") != pid {
			p.Errorf("the bystander's shim %d lives: %t, its process is %d, want %d", shim, harness.Alive(shim), p.pid("bystander"), pid)
		}
		p.wantWorks("bystander")
	}
}

func TestClean_ADeadShimAndItsContainer(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	pid := p.forgotten("dead")
	p.wantRemoved(p.clean(0), "leftover-bundles")
	if harness.Alive(pid) {
		t.Error("the process of the container lives")
	}
	p.wantTraceless("dead")
	if n := p.sockets(); n != 1 {
		t.Errorf("%d sockets, want the bystander's alone", n)
	}
	unharmed()
	if c := p.clean(0); len(c.Removed)+len(c.Left) > 0 {
		t.Errorf("once more: %+v, want nothing", c)
	}
	unharmed()
}

// All containers of a pod have one shim.
func TestClean_ADeadShimOfAPod(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	p.forgotten("pod", "one", "two")
	p.wantRemoved(p.clean(0), "leftover-bundles", "leftover-bundles", "leftover-bundles")
	for _, id := range []string{"pod", "one", "two"} {
		p.wantTraceless(id)
	}
	unharmed()
}

func TestClean_AContainerWithoutABundle(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	pid := p.forgotten("lost")
	bundle := filepath.Join(p.bundles(), "lost")
	p.must(unix.Unmount(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH))
	p.must(os.RemoveAll(bundle))
	p.ages(2)
	p.wantRemoved(p.clean(0), "leftover-states", "leftover-sockets")
	if harness.Alive(pid) {
		t.Error("the process of the container lives")
	}
	p.must(os.RemoveAll(filepath.Join(p.Dir, "root/io.containerd.runtime.v2.task", p.namespace, "lost"))) // of which nothing tells
	p.wantTraceless("lost")
	unharmed()
}

// Somebody has removed all files of a bundle. Its rootfs is mounted, and stays while the container lives.
func TestClean_AContainerWithABareBundle(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	pid := p.forgotten("lost")
	entries, err := os.ReadDir(filepath.Join(p.bundles(), "lost"))
	p.must(err)
	for _, d := range entries {
		if d.Name() != "rootfs" {
			p.must(os.RemoveAll(filepath.Join(p.bundles(), "lost", d.Name())))
		}
	}
	p.ages(3)
	c := p.clean(0)
	if len(c.Gone) != 1 || c.Gone[0].Check != "leftover-mounts" {
		t.Errorf("gone: %v, want what the delete command has unmounted", c.Gone)
	}
	p.wantRemoved(c, "leftover-states", "leftover-sockets")
	if harness.Alive(pid) {
		t.Error("the process of the container lives")
	}
	p.must(os.RemoveAll(filepath.Join(p.Dir, "root/io.containerd.runtime.v2.task", p.namespace, "lost"))) // of which nothing tells
	p.wantTraceless("lost")
	unharmed()
}

// All kinds of leftovers go in one run.
func TestClean_AMountAndAContainerWithoutABundle(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	p.forgotten("lost")
	bundle := filepath.Join(p.bundles(), "lost")
	p.must(unix.Unmount(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH))
	p.must(os.RemoveAll(bundle))
	at := filepath.Join(p.bundles(), "gone/rootfs")
	p.must(os.MkdirAll(at, 0o711))
	p.must(unix.Mount("tmpfs", at, "tmpfs", 0, ""))
	p.ages(3)
	p.wantRemoved(p.clean(0), "leftover-states", "leftover-mounts", "leftover-sockets")
	p.must(os.RemoveAll(filepath.Join(p.Dir, "root/io.containerd.runtime.v2.task", p.namespace, "lost")))
	p.wantTraceless("lost")
	p.wantTraceless("gone")
	unharmed()
}

// What somebody has mounted in a bundle is neither unmounted nor emptied, and the container stays as it is.
func TestClean_LeavesABundleWithAnothersMount(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	pid := p.forgotten("dead")
	volume := t.TempDir()
	file := filepath.Join(volume, "precious")
	p.must(os.WriteFile(file, nil, 0o600))
	at := filepath.Join(p.bundles(), "dead/volume")
	p.must(os.Mkdir(at, 0o700))
	p.must(unix.Mount(volume, at, "", unix.MS_BIND, ""))
	p.wantLeft(p.clean(2), "leftover-bundles", "is mounted there, and not by a shim", "umount -- "+at+" first, then run this again")
	if _, err := os.Stat(file); err != nil || !harness.Alive(pid) {
		t.Errorf("the file in the volume: %v, the process lives: %t", err, harness.Alive(pid))
	}
	p.must(unix.Unmount(at, 0))
	p.wantRemoved(p.clean(0), "leftover-bundles")
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	unharmed()
}

// wantLeft fails the test unless one leftover stays, for a reason and with a fix, and nothing was removed.
func (p *patient) wantLeft(c cleaned, check, reason, fix string) {
	p.Helper()
	if len(c.Removed) > 0 || len(c.Left) != 1 || c.Left[0].Check != check || !strings.Contains(c.Left[0].Reason, reason) || c.Left[0].Fix != fix {
		p.Errorf("removed %v, left %+v, want that %s stays with %q, and the fix %q", c.Removed, c.Left, check, reason, fix)
	}
}

// A process that somebody moved into the cgroup of the container would be killed with it.
func TestClean_LeavesACgroupWithAnothersProcess(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	pid := p.forgotten("dead")
	other := exec.CommandContext(t.Context(), "sleep", "1000")
	p.must(other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }() // it is ended here alone
	file, err := harness.CgroupFilePath("/"+p.namespace+"/dead", "cgroup.procs", "cgroup.procs")
	p.must(err)
	p.must(os.WriteFile(file, fmt.Append(nil, other.Process.Pid), 0))
	p.wantLeft(p.clean(2), "leftover-bundles", fmt.Sprintf("its cgroup has process %d", other.Process.Pid),
		fmt.Sprintf("move process %d out of the cgroup or end it first, then run this again", other.Process.Pid))
	if !harness.Alive(other.Process.Pid) || !harness.Alive(pid) {
		t.Errorf("the other process lives: %t, that of the container: %t", harness.Alive(other.Process.Pid), harness.Alive(pid))
	}
	p.must(other.Process.Kill())
	_ = other.Wait() // it was killed
	p.wantRemoved(p.clean(0), "leftover-bundles")
	unharmed()
}

// The bundle of one container of a pod is gone, and its shim lives and looks after it.
func TestClean_LeavesAContainerOfAShimThatLives(t *testing.T) {
	p := newPatient(t, nil)
	shim := p.run("pod")
	p.start("one", p.Env.Runtime, oci.WithProcessArgs("sleep", "1000"), inPodOf("pod"))
	pid := p.pid("one")
	p.must(p.Kill())
	bundle := filepath.Join(p.bundles(), "one")
	p.must(unix.Unmount(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH))
	p.must(os.RemoveAll(bundle))
	p.must(p.Start(t.Context()))
	p.ctr("container", "rm", "one")
	p.wantLeft(p.clean(2), "leftover-states", "the shim of pod lives and has it", "when the shim of pod has ended, run this again")
	if !harness.Alive(shim) || !harness.Alive(pid) {
		t.Errorf("the shim lives: %t, the process of the container: %t", harness.Alive(shim), harness.Alive(pid))
	}
	p.wantWorks("pod")
	p.must(unix.Kill(shim, unix.SIGTERM)) // it ends all that it has
	harness.Eventually(t, "end of the shim", func() error {
		if harness.Alive(shim) {
			return errors.New("it lives")
		}
		return nil
	})
	p.must(os.RemoveAll(filepath.Join(p.Dir, "root/io.containerd.runtime.v2.task", p.namespace, "one")))
}

// A shim whose bundle is gone, and that has a container, is not dead.
func TestClean_LeavesAShimThatHasAContainer(t *testing.T) {
	p := newPatient(t, nil)
	shim := p.run("lost")
	pid := p.pid("lost")
	p.must(p.Kill())
	bundle := filepath.Join(p.bundles(), "lost")
	p.must(unix.Unmount(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH))
	p.must(os.RemoveAll(bundle))
	p.must(p.Start(t.Context()))
	p.ctr("container", "rm", "lost")
	p.wantLeft(p.clean(2), "leftover-shims", "it has 1 processes of containers", fmt.Sprintf("kill -TERM %d", shim))
	if !harness.Alive(shim) || !harness.Alive(pid) {
		t.Errorf("the shim lives: %t, the process of the container: %t", harness.Alive(shim), harness.Alive(pid))
	}
	p.killProcess(shim)
	p.ages(2)
	p.wantRemoved(p.clean(0), "leftover-states", "leftover-sockets")
	p.must(os.RemoveAll(filepath.Join(p.Dir, "root/io.containerd.runtime.v2.task", p.namespace, "lost")))
}

// Without somebody who answers, without containerd, and where it sees other mounts, nothing is removed.
func TestClean_RefusesWhereItCannotKnow(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	pid := p.forgotten("dead")
	untouched := func(what, said, want string) {
		t.Helper()
		if !strings.Contains(said, want) {
			t.Errorf("%s: it said %q, want %q", what, said, want)
		}
		if _, err := os.Stat(filepath.Join(p.bundles(), "dead/config.json")); err != nil || !harness.Alive(pid) {
			t.Errorf("%s: the bundle: %v, the process lives: %t", what, err, harness.Alive(pid))
		}
	}
	_, said := p.ends(1, nil, p.command("--clean")...)
	untouched("no terminal", said, "or give --yes")
	_, said = p.ends(1, nil, append([]string{"unshare", "--mount"}, p.command("--clean", "--yes")...)...)
	untouched("other mounts", said, "sees other mounts or processes")
	_, said = p.ends(1, nil, append([]string{"unshare", "--pid", "--fork"}, p.command("--clean", "--yes")...)...)
	untouched("other processes", said, "cannot be seen from here")
	elsewhere := []string{binary, "--address", p.Address, "--state", t.TempDir(), "doctor", "--clean", "--yes"}
	_, said = p.ends(1, nil, elsewhere...)
	untouched("another state directory", said, "is not the directory of the containerd that answers")
	p.must(p.Kill())
	_, said = p.ends(1, nil, p.command("--clean", "--yes")...)
	untouched("no containerd", said, "cannot be asked")
	p.must(p.Start(t.Context())) // which removes the bundle
	unharmed()
}

func TestClean_AsksOnATerminal(t *testing.T) {
	p := newPatient(t, nil)
	unharmed := p.bystander()
	pid := p.forgotten("dead")
	for _, tt := range []struct {
		answer string
		status int
		said   string
	}{{"n\n", 1, "it was not wanted"}, {"\n", 1, "it was not wanted"}, {"y\n", 0, "[y/N]"}} {
		terminal, tty, err := pty.Open()
		p.must(err)
		_, err = io.WriteString(terminal, tt.answer)
		p.must(err)
		shown, said := p.ends(tt.status, tty, p.command("--clean")...)
		p.must(errors.Join(tty.Close(), terminal.Close()))
		if !strings.Contains(shown, filepath.Join(p.bundles(), "dead")) || !strings.Contains(said, tt.said) {
			t.Errorf("%q: it showed %q and said %q, want the bundle, and %q", tt.answer, shown, said, tt.said)
		}
		if alive := harness.Alive(pid); alive != (tt.status == 1) {
			t.Errorf("%q: the process of the container lives: %t", tt.answer, alive)
		}
	}
	p.wantTraceless("dead")
	unharmed()
}
