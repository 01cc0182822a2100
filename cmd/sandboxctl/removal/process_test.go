// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/pkg/unixfile"
)

// While the container of a state directory is removed, nobody can make another of its id.
func TestStateDirectory_HasABundleMeanwhile(t *testing.T) {
	for _, namespace := range []string{"is there", "is not"} {
		t.Run("the directory of the namespace "+namespace, func(t *testing.T) {
			p := newPlace(t)
			l := p.state()
			p.run += "\n! mkdir " + p.bundlePath()
			if namespace == "is not" {
				p.must(os.Remove(filepath.Dir(p.bundlePath())))
			}
			p.removes(l)
			p.gone(p.bundlePath())
			_, err := os.Lstat(filepath.Dir(p.bundlePath()))
			if there := err == nil; there != (namespace == "is there") {
				t.Errorf("the directory of the namespace: %v", err)
			}
			want := "-namespace ns -address /a -id c -bundle " + p.bundlePath() + " delete"
			if got := p.ran(); got != want {
				t.Errorf("ran %q, want %q", got, want)
			}
		})
	}
}

// A container of the same id that is being made has its bundle.
func TestStateDirectory_OfAContainerThatIsMadeAnew(t *testing.T) {
	p := newPlace(t)
	l := p.state()
	for _, file := range []string{"rootfs/file", "config.json"} {
		p.write("state/"+kind+"/ns/c/"+file, "")
		p.must(os.Chmod(p.bundlePath(), 0o700))
		p.leaves(l, "so that no container of the same id is made")
		if got := p.ran(); got != "" {
			t.Errorf("ran %q, want nothing", got)
		}
		p.there(l.Path)
		p.there(p.bundlePath(file))
		p.must(os.RemoveAll(p.bundlePath()))
	}
}

// What somebody left who removed a bundle by hand, or this program when it was killed.
func TestStateDirectory_HasABareBundle(t *testing.T) {
	bare := func(t *testing.T) (*place, leftover.Leftover) {
		t.Helper()
		p := newPlace(t)
		p.must(os.MkdirAll(p.bundlePath("rootfs"), 0o700))
		return p, p.state()
	}
	t.Run("empty", func(t *testing.T) {
		p, l := bare(t)
		p.must(os.Remove(p.bundlePath("rootfs")))
		p.removes(l)
		p.gone(p.bundlePath())
	})
	t.Run("with a mount that the delete command unmounts", func(t *testing.T) {
		p, l := bare(t)
		p.mount(p.bundlePath("rootfs"))
		p.run += "\numount " + p.bundlePath("rootfs")
		p.removes(l)
		p.gone(p.bundlePath())
	})
	t.Run("with a mount that stays", func(t *testing.T) {
		p, l := bare(t)
		p.mount(p.bundlePath("rootfs"))
		p.removes(l)
		p.there(p.bundlePath("rootfs/file"))
	})
	t.Run("of a container that is made anew", func(t *testing.T) {
		p, l := bare(t)
		p.look = func(n int) {
			if n == 2 {
				p.list = nil
			}
		}
		if err := p.remover().Remove(t.Context(), l); !errors.Is(err, ErrGone) {
			t.Errorf("Remove = %v, want %v", err, ErrGone)
		}
		p.there(p.bundlePath("rootfs"))
	})
	t.Run("on which another works", func(t *testing.T) {
		p, l := bare(t)
		unlock, err := unixfile.TryLock(p.bundlePath())
		p.must(err)
		defer unlock()
		p.leaves(l, "another process holds the lock")
	})
}

// The delete command of containerd was faster.
func TestStateDirectory_IsGoneByNow(t *testing.T) {
	p := newPlace(t)
	l := p.state()
	p.look = func(n int) {
		if n == 2 {
			p.list = nil
		}
	}
	if err := p.remover().Remove(t.Context(), l); !errors.Is(err, ErrGone) || p.ran() != "" {
		t.Errorf("Remove = %v, ran %q, want %v, and that nothing is done", err, p.ran(), ErrGone)
	}
	p.gone(p.bundlePath())
}

// It is looked again when nobody can make another any more.
func TestStateDirectory_IsWantedByNow(t *testing.T) {
	p := newPlace(t)
	l := p.state()
	p.look = func(n int) {
		if n == 2 {
			p.list[0].Keep = "the shim of its pod lives"
		}
	}
	p.leaves(l, "the shim of its pod lives")
	if got := p.ran(); got != "" {
		t.Errorf("ran %q, want nothing", got)
	}
	p.there(l.Path)
	p.gone(p.bundlePath())
}

func TestStateDirectory_IsBehindALinkOrAMount(t *testing.T) {
	for _, level := range []string{"runc", "runc/ns", "runc/ns/c"} {
		t.Run("link "+level, func(t *testing.T) {
			p := newPlace(t)
			l := p.state()
			p.must(os.Rename(p.path(level), p.path("moved")))
			p.must(os.Symlink(p.path("moved"), p.path(level)))
			p.leaves(l, "symbolic link")
			p.there(filepath.Join(l.Path, "state.json"))
		})
	}
	t.Run("mount", func(t *testing.T) {
		p := newPlace(t)
		l := p.state()
		p.mount(l.Path)
		p.leaves(l, "is a mount")
	})
}

func TestStateDirectory_TheDeleteCommandLeavesIt(t *testing.T) {
	p := newPlace(t)
	l := p.state()
	p.run = ""
	if err := p.remover().Remove(t.Context(), l); err == nil || err.Error() != l.Path+" is still there after the delete command" {
		t.Errorf("Remove = %v, want that it is still there", err)
	}
	p.there(l.Path)
}

// sleeper starts a process with the name of a shim and an executable, by a user, and says that it is a shim without a bundle.
func (p *place) sleeper(exe string, uid uint32) (*exec.Cmd, leftover.Leftover) {
	p.Helper()
	sleep, err := exec.LookPath("sleep")
	p.must(err)
	text, err := os.ReadFile(sleep)
	p.must(err)
	p.must(os.Chmod(p.dir, 0o755))
	p.must(os.MkdirAll(p.path("bin"), 0o755))
	p.must(os.WriteFile(p.path("bin", exe), text, 0o755))
	cmd := exec.Command(p.path("bin", exe), "1000")
	cmd.Args[0] = program
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid}}
	p.must(cmd.Start())
	p.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // likewise
	})
	stat, err := machine.Root("/").Stat(cmd.Process.Pid)
	p.must(err)
	l := leftover.Leftover{Kind: leftover.Shims, Pid: cmd.Process.Pid}
	l.Target.Started = stat.Started
	p.list = append(p.list, l)
	return cmd, l
}

func (p *place) lives(cmd *exec.Cmd) {
	p.Helper()
	if stat, err := machine.Root("/").Stat(cmd.Process.Pid); err != nil || stat.Dead {
		p.Errorf("process %d was ended: %v", cmd.Process.Pid, err)
	}
}

func TestShim_IsAskedToEnd(t *testing.T) {
	p := newPlace(t)
	cmd, l := p.sleeper(program, 0)
	if err := p.remover().Remove(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	state, err := cmd.Process.Wait()
	p.must(err)
	if status := state.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGTERM {
		t.Errorf("ended with %v, want SIGTERM", state)
	}
}

// Anybody can give a process the command line of a shim.
func TestShim_OnlyLooksLikeOne(t *testing.T) {
	t.Run("of another user", func(t *testing.T) {
		p := newPlace(t)
		cmd, l := p.sleeper(program, 65534)
		p.leaves(l, "is not root's")
		p.lives(cmd)
	})
	t.Run("another program", func(t *testing.T) {
		p := newPlace(t)
		cmd, l := p.sleeper("other", 0)
		p.leaves(l, "is no shim")
		p.lives(cmd)
	})
	t.Run("the pid is used again", func(t *testing.T) {
		p := newPlace(t)
		cmd, l := p.sleeper(program, 0)
		l.Target.Started--
		if err := p.remover().Remove(t.Context(), l); !errors.Is(err, ErrGone) {
			t.Errorf("Remove = %v, want %v", err, ErrGone)
		}
		p.lives(cmd)
	})
	t.Run("it has a container by now", func(t *testing.T) {
		p := newPlace(t)
		cmd, l := p.sleeper(program, 0)
		p.look = func(n int) {
			if n == 2 {
				p.list[0].Keep = "it has 1 processes"
			}
		}
		p.leaves(l, "it has 1 processes")
		p.lives(cmd)
	})
}

// listener makes a socket and says that nobody listens there.
func (p *place) listener() (*net.UnixListener, leftover.Leftover) {
	p.Helper()
	l := leftover.Leftover{Kind: leftover.Sockets, Path: p.path("s", strings.Repeat("a", 40))}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: l.Path, Net: "unix"})
	p.must(err)
	socket.SetUnlinkOnClose(false)
	p.Cleanup(func() { _ = socket.Close() }) // it may be closed
	p.list = append(p.list, l)
	return socket, l
}

func TestSocket_OnWhichNobodyListens(t *testing.T) {
	p := newPlace(t)
	socket, l := p.listener()
	p.must(socket.Close())
	p.removes(l)
}

// A shim that has begun to listen on it after the look.
func TestSocket_OnWhichSomebodyListensByNow(t *testing.T) {
	p := newPlace(t)
	_, l := p.listener()
	p.leaves(l, "somebody listens by now")
	p.there(l.Path)
}

// A shim of another runtime, which takes no lock, makes a socket of the same name after it was seen that nobody listens.
func TestSocket_IsMadeAnew(t *testing.T) {
	for _, listening := range []bool{true, false} {
		p := newPlace(t)
		socket, l := p.listener()
		dir, err := openTop(p.path("s"))
		p.must(err)
		defer dir.Close()
		seen, err := lstat(dir, filepath.Base(l.Path))
		p.must(err)
		if !listening { // it is bound, and not listened on so far
			p.must(os.Rename(l.Path, p.path("old")))
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			p.must(err)
			defer unix.Close(fd)
			p.must(unix.Bind(fd, &unix.SockaddrUnix{Name: l.Path}))
		}
		if err := unlinkSocket(t.Context(), dir, filepath.Base(l.Path), seen); err == nil {
			t.Errorf("listening %t: unlinkSocket = nil, want an error", listening)
		}
		if names, err := os.ReadDir(dir.Name()); err != nil || len(names) != 1 || names[0].Name() != filepath.Base(l.Path) {
			t.Errorf("listening %t: there are %v, %v, want the socket", listening, names, err)
		}
		p.must(socket.Close())
	}
}

func TestSocket_IsNone(t *testing.T) {
	p := newPlace(t)
	socket, l := p.listener()
	p.must(socket.Close())
	p.must(os.Remove(l.Path))
	p.must(os.Symlink(p.path("precious/file"), l.Path))
	p.leaves(l, "is no socket")
	p.there(l.Path)
}

func TestSocket_IsBehindALink(t *testing.T) {
	p := newPlace(t)
	socket, l := p.listener()
	p.must(socket.Close())
	p.must(os.Rename(p.path("s"), p.path("moved")))
	p.must(os.Symlink(p.path("moved"), p.path("s")))
	p.leaves(l, "symbolic link")
	p.there(l.Path)
}
