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

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

func addresses(t *testing.T, text string) []Address {
	t.Helper()
	list, err := Parse(text)
	testx.Must(t, err)
	return list
}

func owner() idmap.Owner { return idmap.Owner{UID: os.Getuid(), GID: os.Getgid()} }

// opened opens and binds; the test closes.
func opened(t *testing.T, text string, network Network, root string) (Sockets, error) {
	t.Helper()
	list := addresses(t, text)
	s, _, err := Open(list, network)
	if err != nil {
		return nil, err
	}
	t.Cleanup(s.Close)
	_, err = Bind(list, s, root, owner())
	return s, err
}

func TestOpen_NamespaceOfItsOwnHasOnlyALoopback(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to make a network namespace")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testx.Must(t, err)
	defer taken.Close()
	text := "tcp://" + taken.Addr().String()
	list := addresses(t, text+" udp://[::1]:53")
	s, own, err := Open(list, Network{Own: true})
	testx.Must(t, err)
	defer own.Close()
	defer s.Close()
	_, err = Bind(list, s, "/", owner())
	testx.Must(t, err)
	path := fmt.Sprintf("/proc/self/fd/%d", own.Fd())
	if inode(t, path) == inode(t, "/proc/self/ns/net") {
		t.Error("the namespace is the host's")
	}
	// The same one again, by its path: there the port is taken as well.
	if _, err := opened(t, text, Network{Path: path}, "/"); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("bind in that namespace = %v, want %v", err, unix.EADDRINUSE)
	}
	if _, own, err := Open(addresses(t, "unix:///a"), Network{Own: true}); err != nil || own != nil {
		t.Errorf("Open of a unix socket = %v, %v, want no namespace for the container", own, err)
	}
}

func TestBind_FilesAreRemovedUnlessReplaced(t *testing.T) {
	t.Chdir(t.TempDir()) // an address has room for 108 bytes
	root, err := os.Getwd()
	testx.Must(t, err)
	list := addresses(t, "unix:///a unix:///b")
	s, _, err := Open(list, Network{})
	testx.Must(t, err)
	defer s.Close()
	files, err := Bind(list, s, root, owner())
	testx.Must(t, err)
	testx.Must(t, os.Remove("b"))
	testx.Must(t, os.WriteFile("b", nil, 0o600))
	files.Remove()
	if got := testx.Files(t, root); got != "b" {
		t.Errorf("files = %q, want b, which is another one", got)
	}
	if _, err := opened(t, "unix:///c unix:///none/d", Network{}, root); err == nil || testx.Files(t, root) != "b" {
		t.Errorf("Bind = %v, files %q, want a failure that leaves none", err, testx.Files(t, root))
	}
}

func TestBind_MakesUnixSocketsOfEachTypeInTheRoot(t *testing.T) {
	for kind, network := range map[string]string{"stream": "unix", "dgram": "unixgram", "seqpacket": "unixpacket"} {
		root := t.TempDir()
		s, err := opened(t, "unix:///x.sock?mode=0646&type="+kind, Network{}, root)
		testx.Must(t, err)
		path := filepath.Join(root, "x.sock")
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o646 {
			t.Errorf("%s: %v, %v, want a socket with mode 0646", kind, info, err)
		}
		conn, err := net.Dial(network, path)
		if err != nil {
			t.Errorf("connect to %s: %v", kind, err)
		} else {
			_ = conn.Close()
		}
		// One that is open is not taken.
		if _, err := opened(t, "unix:///x.sock?type="+kind, Network{}, root); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a second one = %v, want %v", err, unix.EADDRINUSE)
		}
		s.Close()
		// One that nobody has open is.
		if _, err := opened(t, "unix:///x.sock?type="+kind, Network{}, root); err != nil {
			t.Errorf("after the first one is closed: %v", err)
		}
	}
}

func TestBind_DoesNotReplaceASocketThatDoesNotListenYet(t *testing.T) {
	root := t.TempDir()
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "seqpacket": unix.SOCK_SEQPACKET} {
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		testx.Must(t, err)
		path := filepath.Join(root, name)
		testx.Must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
		want := inode(t, path)
		if _, err := opened(t, "unix:///"+name+"?type="+name, Network{}, root); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%s: a second one = %v, want %v", name, err, unix.EADDRINUSE)
		}
		if got := inode(t, path); got != want {
			t.Errorf("%s: the file is another one", name)
		}
		_ = unix.Close(fd)
	}
}

func TestBind_PathDoesNotLeadOutOfTheContainer(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	for name, target := range map[string]string{"absolute": outside, "relative": "../" + filepath.Base(outside), "proc": "/proc/self/root/tmp"} {
		testx.Must(t, os.Symlink(target, filepath.Join(root, name)))
		if _, err := opened(t, "unix:///"+name+"/x", Network{}, root); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ELOOP) || !strings.Contains(err.Error(), "/"+name) {
			t.Errorf("a path through the link %s = %v, want that there is none in the container", name, err)
		}
	}
	// A link within is followed, from the container's root.
	testx.Must(t, errors.Join(os.Mkdir(filepath.Join(root, "run"), 0o700), os.Symlink("/run", filepath.Join(root, "var"))))
	if _, err := opened(t, "unix:///var/x", Network{}, root); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(root, "run/x")); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("made outside: %v", entries)
	}
	// A file in the place of the socket stays.
	testx.Must(t, os.WriteFile(filepath.Join(root, "file"), []byte("x"), 0o600))
	if _, err := opened(t, "unix:///ok unix:///file", Network{}, root); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a socket in the place of a file = %v, want %v", err, unix.EADDRINUSE)
	}
	if text, _ := os.ReadFile(filepath.Join(root, "file")); string(text) != "x" {
		t.Errorf("the file has %q", text)
	}
}

func TestBind_NamesATakenPortAndAMissingAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testx.Must(t, err)
	defer taken.Close()
	busy := "busy=tcp://" + taken.Addr().String()
	if _, err := opened(t, busy, Network{}, "/"); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), fmt.Sprintf("%q", busy)) {
		t.Errorf("bind of a port that is taken = %v", err)
	}
	if _, err := opened(t, "tcp://192.0.2.1:80", Network{}, "/"); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("bind of an address of no interface = %v", err)
	}
	if _, err := opened(t, "tcp://127.0.0.1:80", Network{Path: "/no/such/namespace"}, "/"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open in a namespace that is not there = %v", err)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	testx.Must(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// networked returns the pid of a process with a network namespace of its own, which ends with the test.
func networked(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	testx.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // killed with the context
	return cmd.Process.Pid
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
		s, err := opened(t, "unix:///x.sock", network, t.TempDir())
		testx.Must(t, err)
		fd, err := unix.IoctlRetInt(int(s[0].Fd()), unix.SIOCGSKNS)
		testx.Must(t, err)
		defer unix.Close(fd)
		return inode(t, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	if of(Network{}) != host {
		t.Error("without a namespace of the container's it is not the host's")
	}
	if of(Network{Own: true}) == host {
		t.Error("with a namespace of the container's own it is the host's")
	}
	path := fmt.Sprintf("/proc/%d/ns/net", networked(t))
	if of(Network{Path: path}) != inode(t, path) {
		t.Error("with a namespace that is joined it is another")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testx.Must(t, err)
	defer taken.Close()
	text := "tcp://0.0.0.0:" + fmt.Sprint(taken.Addr().(*net.TCPAddr).Port) + " udp://[::]:53"
	if _, err := opened(t, text, Network{Path: path}, "/"); err != nil {
		t.Errorf("ports of the host are taken in a namespace that is joined: %v", err)
	}
}

// The file systems that a container with users of its own mounts know no user of the host.
func TestBind_OnAFileSystemOfTheContainersUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to map users")
	}
	const root = 100000
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: root, Size: 1000}}
	container := exec.CommandContext(t.Context(), "sh", "-c", "mount -t tmpfs -o mode=0755 tmpfs /mnt && echo mounted && exec cat")
	container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: ids, GidMappings: ids, Credential: &syscall.Credential{NoSetGroups: true}}
	stdin, err := container.StdinPipe()
	testx.Must(t, err)
	stdout, err := container.StdoutPipe()
	testx.Must(t, err)
	container.Stderr = os.Stderr
	testx.Must(t, container.Start())
	defer func() {
		_ = stdin.Close()
		_ = container.Wait()
	}()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	list := addresses(t, "unix:///mnt/x.sock?mode=0646")
	s, _, err := Open(list, Network{})
	testx.Must(t, err)
	defer s.Close()
	dir := fmt.Sprintf("/proc/%d/root", container.Process.Pid)
	_, err = Bind(list, s, dir, idmap.Owner{UID: root, GID: root})
	testx.Must(t, err)
	info, err := os.Stat(dir + "/mnt/x.sock")
	testx.Must(t, err)
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != root || stat.Gid != root || info.Mode().Perm() != 0o646 {
		t.Errorf("owner %d:%d, mode %v", stat.Uid, stat.Gid, info.Mode())
	}
}
