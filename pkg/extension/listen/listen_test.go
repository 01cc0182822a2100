// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
)

func addresses(t *testing.T, text string) []Address {
	t.Helper()
	list, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func owner() idmap.Owner { return idmap.Owner{UID: os.Getuid(), GID: os.Getgid()} }

// opened opens and binds; the test closes.
func opened(t *testing.T, text string, network Network, root string) (*Sockets, *Bound, error) {
	t.Helper()
	list := addresses(t, text)
	s, err := Open(list, network)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(s.Close)
	b, err := Bind(list, s, root, owner())
	if err == nil {
		t.Cleanup(b.Remove)
	}
	return s, b, err
}

func TestBind_MakesUnixSocketsOfEachTypeInTheRoot(t *testing.T) {
	for kind, network := range map[string]string{"stream": "unix", "dgram": "unixgram", "seqpacket": "unixpacket"} {
		root := t.TempDir()
		s, b, err := opened(t, "unix:///x.sock?mode=0640&type="+kind, Network{}, root)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, "x.sock")
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o640 {
			t.Errorf("%s: %v, %v, want a socket with mode 0640", kind, info, err)
		}
		conn, err := net.Dial(network, path)
		if err != nil {
			t.Errorf("connect to %s: %v", kind, err)
		} else {
			_ = conn.Close()
		}
		// One that is open is not taken.
		if _, _, err := opened(t, "unix:///x.sock?type="+kind, Network{}, root); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a second one = %v, want %v", err, unix.EADDRINUSE)
		}
		s.Close()
		// One that nobody has open is.
		_, again, err := opened(t, "unix:///x.sock?type="+kind, Network{}, root)
		if err != nil {
			t.Errorf("after the first one is closed: %v", err)
			continue
		}
		b.Remove() // not its own any more
		if _, err := os.Stat(path); err != nil {
			t.Errorf("Remove of the first one removed the second: %v", err)
		}
		again.Remove()
		again.Remove()
		if entries, _ := os.ReadDir(root); len(entries) > 0 {
			t.Errorf("left: %v", entries)
		}
	}
}

func TestBind_DoesNotReplaceASocketThatDoesNotListenYet(t *testing.T) {
	root := t.TempDir()
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "seqpacket": unix.SOCK_SEQPACKET} {
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, name)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		want := inode(t, path)
		if _, _, err := opened(t, "unix:///"+name+"?type="+name, Network{}, root); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%s: a second one = %v, want %v", name, err, unix.EADDRINUSE)
		}
		if got := inode(t, path); got != want {
			t.Errorf("%s: the file is another one", name)
		}
		_ = unix.Close(fd)
	}
}

func TestBind_KeepsASocketThatReplacedAStaleOne(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "x")
	bind := func() *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	_ = bind().Close()
	dir, err := directory(root, "/", unix.RESOLVE_IN_ROOT)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	old, err := file{dir: dir, name: "x"}.current()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(old.made)
	if stale, err := old.stale(); err != nil || !stale {
		t.Errorf("stale = %v, %v of the socket that was left", stale, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	bind()
	old.unlink()
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the socket of somebody else: %v", err)
	} else {
		_ = conn.Close()
	}
}

func TestOpen_RefusesAPipeAsNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	// A descriptor for both ends lets an open go on that waits; the test then fails and does not hang.
	awake := time.AfterFunc(5*time.Second, func() {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			time.AfterFunc(time.Second, func() { _ = f.Close() })
		}
	})
	_, err := Open(addresses(t, "tcp://127.0.0.1:80"), Network{Path: path})
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), path) || !awake.Stop() {
		t.Errorf("Open in a pipe = %v, want at once that it is no namespace", err)
	}
}

func TestBind_PathDoesNotLeadOutOfTheContainer(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	for name, target := range map[string]string{"absolute": outside, "relative": "../" + filepath.Base(outside), "proc": "/proc/self/root/tmp"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := opened(t, "unix:///"+name+"/x", Network{}, root); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ELOOP) || !strings.Contains(err.Error(), "/"+name) {
			t.Errorf("a path through the link %s = %v, want that there is none in the container", name, err)
		}
	}
	// A link within is followed, from the container's root.
	if err := errors.Join(os.Mkdir(filepath.Join(root, "run"), 0o700), os.Symlink("/run", filepath.Join(root, "var"))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := opened(t, "unix:///var/x", Network{}, root); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(root, "run/x")); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("made outside: %v", entries)
	}
	// A file in the place of the socket stays.
	if err := os.WriteFile(filepath.Join(root, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := opened(t, "unix:///ok unix:///file", Network{}, root); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a socket in the place of a file = %v, want %v", err, unix.EADDRINUSE)
	}
	if text, _ := os.ReadFile(filepath.Join(root, "file")); string(text) != "x" {
		t.Errorf("the file has %q", text)
	}
	if _, err := os.Lstat(filepath.Join(root, "ok")); err == nil {
		t.Error("the socket before the one that failed is left")
	}
}

func TestBind_NamesATakenPortAndAMissingAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := "busy=tcp://" + taken.Addr().String()
	if _, _, err := opened(t, busy, Network{}, "/"); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), fmt.Sprintf("%q", busy)) {
		t.Errorf("bind of a port that is taken = %v", err)
	}
	if _, _, err := opened(t, "tcp://192.0.2.1:80", Network{}, "/"); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("bind of an address of no interface = %v", err)
	}
	if _, _, err := opened(t, "tcp://127.0.0.1:80", Network{Path: "/no/such/namespace"}, "/"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open in a namespace that is not there = %v", err)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestOpen_NamespaceOfItsOwnHasOnlyALoopback(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to make a network namespace")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	host := inode(t, "/proc/self/ns/net")
	text := "tcp://" + taken.Addr().String()
	s, _, err := opened(t, text+" udp://[::1]:53", Network{Own: true}, "/")
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d", s.Namespace.Fd())
	if inode(t, path) == host {
		t.Error("the namespace is the host's")
	}
	// The same one again, by its path: there the port is taken as well.
	if _, _, err := opened(t, text, Network{Path: path}, "/"); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("bind in that namespace = %v, want %v", err, unix.EADDRINUSE)
	}
	// The threads that were there are gone; all others are where they were.
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	for _, task := range tasks {
		if info, err := os.Stat(task); err == nil && info.Sys().(*syscall.Stat_t).Ino != host {
			link, _ := os.Readlink(task)
			waitGone(t, task, link)
		}
	}
}

// waitGone waits until a thread that is in another namespace has ended.
func waitGone(t *testing.T, task, namespace string) {
	t.Helper()
	for range 1000 {
		if link, err := os.Readlink(task); err != nil || link != namespace {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Errorf("thread %s is in %s still", task, namespace)
}

// A socket of the host's namespace would give the container its interfaces, and with CAP_NET_ADMIN the namespace.
func TestOpen_SocketWithAPathIsNotInTheHostsNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to make a network namespace")
	}
	host := inode(t, "/proc/self/ns/net")
	// of is the namespace of the only socket.
	of := func(network Network) uint64 {
		t.Helper()
		s, _, err := opened(t, "unix:///x.sock", network, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if s.Namespace != nil {
			t.Errorf("%+v: a namespace was made for the container", network)
		}
		fd, err := unix.IoctlRetInt(int(s.Files[0].Fd()), unix.SIOCGSKNS)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		return inode(t, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	if of(Network{}) != host {
		t.Error("without a namespace of the container's it is not the host's")
	}
	if of(Network{Own: true}) == host {
		t.Error("with a namespace of the container's own it is the host's")
	}
	s, _, err := opened(t, "tcp://127.0.0.1:80", Network{Own: true}, "/")
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d", s.Namespace.Fd())
	if of(Network{Path: path}) != inode(t, path) {
		t.Error("with a namespace that is joined it is another")
	}
}

// The file systems that a container with users of its own mounts know no user of the host.
func TestBind_OnAFileSystemOfTheContainersUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to map users")
	}
	const root = 100000
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: root, Size: 1000}}
	container := exec.CommandContext(t.Context(), "sh", "-c", "mount -t tmpfs -o mode=0755 tmpfs /mnt && mkdir -m 0700 /mnt/dir && chown 7:7 /mnt/dir && echo mounted && exec cat")
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: ids, GidMappings: ids, Credential: &syscall.Credential{NoSetGroups: true}}
	stdin, err := container.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := container.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	container.Stderr = os.Stderr
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = container.Wait()
	}()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	list := addresses(t, "unix:///mnt/dir/x.sock?mode=0640")
	s, err := Open(list, Network{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dir := fmt.Sprintf("/proc/%d/root", container.Process.Pid)
	b, err := Bind(list, s, dir, idmap.Owner{UID: root, GID: root})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Remove()
	info, err := os.Stat(dir + "/mnt/dir/x.sock")
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != root || stat.Gid != root || info.Mode().Perm() != 0o640 {
		t.Errorf("owner %d:%d, mode %v", stat.Uid, stat.Gid, info.Mode())
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 1 || err != nil {
		t.Errorf("dumpable = %d, %v, want 1 as before", dumpable, err)
	}
	b.Remove()
	if _, err := os.Stat(dir + "/mnt/dir/x.sock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}
