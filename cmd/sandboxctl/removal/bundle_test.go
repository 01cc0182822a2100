// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/pkg/unixfile"
)

func TestBundle_IsRemovedAsContainerdDoes(t *testing.T) {
	p := newPlace(t)
	l := p.bundle()
	p.removes(l)
	p.gone(p.path("root", kind, "ns/c"))
	want := fmt.Sprintf("-namespace ns -address /a -id c -bundle %s delete", l.Path)
	if got := p.ran(); got != want {
		t.Errorf("ran %q, want %q", got, want)
	}
	if entries, err := os.ReadDir(filepath.Dir(l.Path)); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v, want nothing", entries, err)
	}
}

// What the delete command does not unmount is not the shim's.
func TestBundle_IsNotRemovedThroughAMount(t *testing.T) {
	for _, at := range []string{"volume", "rootfs", "deep/er/most", "host-rootfs/0"} {
		t.Run(at, func(t *testing.T) {
			p := newPlace(t)
			l := p.bundle()
			p.mount(p.bundlePath(at))
			p.leaves(l, "is still mounted")
			p.there(l.Path)
		})
	}
	t.Run("the bundle itself", func(t *testing.T) {
		p := newPlace(t)
		l := p.bundle()
		p.mount(l.Path)
		p.leaves(l, "is a mount")
		if got := p.ran(); got != "" {
			t.Errorf("ran %q, want nothing", got)
		}
	})
}

// A mount that appears while the tree is removed stops the removal.
func TestEmpty_StopsAtAMount(t *testing.T) {
	p := newPlace(t)
	p.bundle()
	p.mount(p.bundlePath("deep/er/most"))
	dir, err := openTop(p.bundlePath())
	p.must(err)
	defer dir.Close()
	if err := empty(dir); err == nil {
		t.Error("empty = nil, want an error that says where a mount is")
	}
	p.there(p.path("precious/file"))
	p.there(p.bundlePath("deep/er/most"))
}

func TestBundle_IsNotReachedThroughALink(t *testing.T) {
	for _, level := range []string{"state", "state/" + kind, "state/" + kind + "/ns", "state/" + kind + "/ns/c"} {
		t.Run(level, func(t *testing.T) {
			p := newPlace(t)
			l := p.bundle()
			p.must(os.Rename(p.path(level), p.path("moved")))
			p.must(os.Symlink(p.path("moved"), p.path(level)))
			p.leaves(l, "symbolic link")
			if got := p.ran(); got != "" {
				t.Errorf("ran %q, want nothing", got)
			}
			p.there(filepath.Join(l.Path, "config.json"))
		})
	}
}

// A link anywhere above the state directory, too.
func TestOpenTop_FollowsNoLink(t *testing.T) {
	p := newPlace(t)
	p.must(os.Symlink(p.dir, p.path("up")))
	if dir, err := openTop(p.path("up/state")); err == nil {
		t.Errorf("openTop = %s, want an error for the link", dir.Name())
	}
}

// The delete command would unmount what the link leads to.
func TestBundle_HasALinkForADirectory(t *testing.T) {
	for _, name := range []string{"rootfs", "host-rootfs", "etc", "shm"} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			l := p.bundle()
			p.must(os.RemoveAll(p.bundlePath(name)))
			p.must(os.Symlink(p.path("precious"), p.bundlePath(name)))
			p.leaves(l, "symbolic link")
			if got := p.ran(); got != "" {
				t.Errorf("ran %q, want nothing", got)
			}
		})
	}
}

func TestBundle_HasAStateDirectoryBehindALink(t *testing.T) {
	for _, level := range []string{"runc", "runc/ns", "runc/ns/c"} {
		t.Run(level, func(t *testing.T) {
			p := newPlace(t)
			l := p.bundle()
			p.write("runc/ns/c/state.json", "{}")
			p.must(os.Rename(p.path(level), p.path("moved")))
			p.must(os.Symlink(p.path("moved"), p.path(level)))
			p.leaves(l, "symbolic link")
			if got := p.ran(); got != "" {
				t.Errorf("ran %q, want nothing", got)
			}
		})
	}
}

func TestBundle_CanBeWrittenByOthers(t *testing.T) {
	p := newPlace(t)
	l := p.bundle()
	p.must(os.Chmod(filepath.Dir(l.Path), 0o777))
	p.leaves(l, "can be written by others")
	p.must(os.Chmod(filepath.Dir(l.Path), 0o711))
	p.must(os.Chown(l.Path, 1000, -1))
	p.leaves(l, "can be written by others")
}

// What is not mounted in a rootfs is not known to be the container's: containerd leaves it, too.
func TestBundle_HasFilesInItsRootfs(t *testing.T) {
	p := newPlace(t)
	l := p.bundle()
	p.write("state/"+kind+"/ns/c/rootfs/file", "")
	p.leaves(l, "not empty")
	p.there(p.bundlePath("rootfs/file"))
	p.there(p.bundlePath("config.json"))
}

func TestBundle_TheDeleteCommandFails(t *testing.T) {
	p := newPlace(t)
	l := p.bundle()
	p.run = "echo it hangs >&2; exit 1"
	p.leaves(l, "it hangs")
	p.there(p.bundlePath("config.json"))
}

// Another process that works on the bundle, such as containerd's own delete command, has its lock.
func TestBundle_IsLocked(t *testing.T) {
	p := newPlace(t)
	l := p.bundle()
	unlock, err := unixfile.TryLock(l.Path)
	p.must(err)
	defer unlock()
	p.leaves(l, "another process holds the lock")
	p.there(p.bundlePath("config.json"))
}

// Right before a removal it is looked again, and after the delete command once more.
func TestRemove_LooksAgain(t *testing.T) {
	t.Run("a shim was started", func(t *testing.T) {
		p := newPlace(t)
		l := p.bundle()
		p.look = func(int) { p.list = nil }
		if err := p.remover().Remove(t.Context(), l); !errors.Is(err, ErrGone) || p.ran() != "" {
			t.Errorf("Remove = %v, ran %q, want %v, and that nothing is done", err, p.ran(), ErrGone)
		}
		p.there(p.bundlePath("config.json"))
	})
	t.Run("it is kept by now", func(t *testing.T) {
		p := newPlace(t)
		l := p.bundle()
		p.look = func(int) { p.list[0].Keep = "somebody has it" }
		p.leaves(l, "somebody has it")
		if got := p.ran(); got != "" {
			t.Errorf("ran %q, want nothing", got)
		}
	})
	t.Run("it is none after the delete command", func(t *testing.T) {
		p := newPlace(t)
		l := p.bundle()
		p.look = func(n int) {
			if n == 2 {
				p.list = nil
			}
		}
		p.leaves(l, "is in use by now")
		p.there(p.bundlePath("config.json"))
	})
	t.Run("it is kept after the delete command", func(t *testing.T) {
		p := newPlace(t)
		l := p.bundle()
		p.look = func(n int) {
			if n == 2 {
				p.list[0].Keep = "somebody has it"
			}
		}
		p.leaves(l, "somebody has it")
		p.there(p.bundlePath("config.json"))
	})
	t.Run("containerd removed it and made another", func(t *testing.T) {
		p := newPlace(t)
		l := p.bundle()
		p.look = func(n int) {
			if n == 2 {
				p.must(os.Rename(l.Path, p.path("aside")))
				p.must(os.Mkdir(l.Path, 0o700))
				p.write("state/"+kind+"/ns/c/config.json", "new")
			}
		}
		if err := p.remover().Remove(t.Context(), l); err != nil {
			t.Errorf("Remove = %v", err)
		}
		p.there(p.bundlePath("config.json"))
	})
}

func TestHiddenBundle_IsUnmountedAndRemoved(t *testing.T) {
	p := newPlace(t)
	l := p.hidden()
	p.removes(l)
	if got := p.ran(); got != "" {
		t.Errorf("ran %q, want nothing: containerd has called it", got)
	}
}

// hidden makes a bundle that containerd has begun to remove, with its rootfs.
func (p *place) hidden() leftover.Leftover {
	p.Helper()
	p.bundle()
	p.mount(p.bundlePath("rootfs"))
	l := &p.list[0]
	l.Path, l.Target.Hidden = p.path("state", kind, "ns", ".c"), true
	p.must(os.Rename(p.bundlePath(), l.Path))
	l.Target.Mounts = p.mountsIn(l.Path)
	return *l
}

// A mount that is not the one that was seen stays.
func TestMount_IsAnotherByNow(t *testing.T) {
	p := newPlace(t)
	l := p.hidden()
	p.look = func(n int) {
		if n == 1 {
			p.must(unix.Mount("tmpfs", filepath.Join(l.Path, "rootfs"), "tmpfs", 0, ""))
		}
	}
	p.leaves(l, "something else is mounted there by now")
	p.there(filepath.Join(l.Path, "config.json"))
	if got := len(p.mountsIn(l.Path)); got != 2 {
		t.Errorf("%d mounts are left, want both", got)
	}
}

func TestMount_IsInUse(t *testing.T) {
	p := newPlace(t)
	l := p.hidden()
	f, err := os.Open(filepath.Join(l.Path, "rootfs/file"))
	p.must(err)
	defer f.Close()
	p.leaves(l, "a process uses it")
	p.there(filepath.Join(l.Path, "config.json"))
}

func TestMounts_OfABundleThatNobodyHas(t *testing.T) {
	p := newPlace(t)
	p.mount(p.bundlePath("rootfs"))
	l := leftover.Leftover{Kind: leftover.Mounts, Path: p.bundlePath()}
	l.Target.Mounts = p.mountsIn(l.Path)
	p.list = []leftover.Leftover{l}
	p.removes(l)
}

// fuse mounts a file system in a bundle whose server answers nothing until it is stopped.
func (p *place) fuse(at string) (stop func()) {
	p.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	p.must(err)
	p.must(os.MkdirAll(at, 0o711))
	p.must(unix.Mount("fuse", at, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	stop = sync.OnceFunc(func() { p.must(unix.Close(fd)) })
	p.Cleanup(stop)
	return stop
}

func TestRemove_AsksNoFileSystemOfAContainer(t *testing.T) {
	for _, server := range []string{"does not answer", "is dead"} {
		for kind, leftoverOf := range map[string]func(p *place) leftover.Leftover{
			"bundle": func(p *place) leftover.Leftover {
				p.run = "umount -l " + p.bundlePath("rootfs")
				return p.bundle()
			},
			"mounts": func(p *place) leftover.Leftover {
				l := leftover.Leftover{Kind: leftover.Mounts, Path: p.bundlePath()}
				p.must(os.MkdirAll(l.Path, 0o711))
				p.list = []leftover.Leftover{l}
				return l
			},
		} {
			t.Run(kind+", the server "+server, func(t *testing.T) {
				p := newPlace(t)
				l := leftoverOf(p)
				stop := p.fuse(p.bundlePath("rootfs"))
				p.list[0].Target.Mounts = p.mountsIn(l.Path)
				if server == "is dead" {
					stop()
				}
				done := make(chan error, 1)
				go func() { done <- p.remover().Remove(t.Context(), l) }()
				select {
				case err := <-done:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(5 * time.Second):
					stop() // which ends the call
					t.Errorf("it hangs; then: %v", <-done)
				}
				p.gone(l.Path)
			})
		}
	}
}

func TestMounts_WhileProcessesOfTheContainerLive(t *testing.T) {
	p := newPlace(t)
	p.mount(p.bundlePath("rootfs"))
	l := leftover.Leftover{Kind: leftover.Mounts, Path: p.bundlePath()}
	l.Target.Mounts, l.Target.Processes = p.mountsIn(l.Path), 1
	p.list = []leftover.Leftover{l}
	p.leaves(l, "1 processes of the container live")
	p.there(p.bundlePath("rootfs/file"))
}

// A link in the way of a mount point leads to what was not meant.
func TestMount_IsBehindALink(t *testing.T) {
	p := newPlace(t)
	p.mount(p.path("other/rootfs"))
	p.must(os.MkdirAll(filepath.Dir(p.bundlePath()), 0o711))
	p.must(os.Symlink(p.path("other"), p.bundlePath("..", "d")))
	m := *p.mountsIn(p.path("other"))[0]
	m.Mountpoint = p.path("state", kind, "ns/d/rootfs")
	if err := unmount(&m); err == nil {
		t.Error("unmount = nil, want an error for the link")
	}
	if got := len(p.mountsIn(p.path("other"))); got != 1 {
		t.Errorf("%d mounts, want the one that was there", got)
	}
}

func (p *place) mountsIn(dir string) (list []*mountinfo.Info) {
	p.Helper()
	all, err := machine.Root("/").Mounts()
	p.must(err)
	for _, m := range all {
		if machine.Within(dir, m.Mountpoint) {
			list = append(list, m)
		}
	}
	return list
}
