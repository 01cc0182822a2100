// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// tree is a node in a directory, with which nothing is wrong: cgroup v2, systemd, a containerd with a handler, one
// container that runs. Tests break one thing of it.
type tree struct {
	*testing.T
	root    string
	version string // of containerd
	known   leftover.Known
	down    bool // containerd does not run
	silent  bool // it does not answer
	euid    int
	missing map[string]error // features of the kernel
}

const (
	daemonPid  = 100
	shimPid    = 200
	task       = "run/containerd/io.containerd.runtime.v2.task/"
	socketDir  = "run/containerd/s/"
	stateDir   = "run/containerd/runc/"
	configFile = "etc/containerd/config.toml"
)

const soundConfig = `version = 3
state = "/run/containerd"
[plugins."io.containerd.internal.v1.opt"]
  path = "/opt/containerd"
[plugins."io.containerd.cri.v1.runtime"]
  enable_selinux = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.sandbox]
  runtime_type = "io.containerd.sandbox.v1"
`

const soundMounts = `21 1 0:20 / /proc rw,relatime - proc proc rw
22 1 0:21 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate
23 1 0:22 / /run rw - tmpfs tmpfs rw
24 23 0:23 / /run/containerd/io.containerd.runtime.v2.task/default/lives/rootfs rw - overlay overlay rw
`

// newTree makes the tree below a directory that only root can write, which the default configuration file needs.
func newTree(t *testing.T) *tree {
	t.Helper()
	root, err := os.MkdirTemp("/run", "doctor-test-")
	if err != nil {
		t.Fatalf("these tests need root: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) }) // what is left shows in the next test of it
	x := &tree{T: t, root: root, version: "2.4.2", missing: map[string]error{}}
	x.known = leftover.Known{{Namespace: "default", ID: "lives"}: true}
	for path, text := range map[string]string{
		"proc/sys/kernel/osrelease":                "6.12.0",
		"proc/sys/vm/overcommit_memory":            "0",
		"proc/sys/fs/inotify/max_user_instances":   "128",
		"proc/self/mountinfo":                      soundMounts,
		"proc/stat":                                "cpu 1 2 3\nbtime 1700000000\n",
		"proc/meminfo":                             "CommitLimit: 1000 kB\nCommitted_AS: 500 kB\n",
		"proc/100/cmdline":                         "/usr/bin/containerd\x00",
		"proc/100/environ":                         "HOME=/\x00PATH=/usr/local/bin:/usr/bin\x00",
		"proc/100/cgroup":                          "0::/system.slice/containerd.service\n",
		"proc/100/stat":                            "100 (containerd) S 1" + strings.Repeat(" 0", 17) + " 1000 0 0",
		"proc/200/cmdline":                         "containerd-shim-sandbox-v1\x00-namespace\x00default\x00-id\x00lives\x00-address\x00/run/containerd/containerd.sock\x00",
		"sys/fs/cgroup/cgroup.controllers":         "cpuset cpu io memory pids",
		"sys/fs/cgroup/default/lives/cgroup.procs": "201\n",
		"sys/fs/cgroup/system.slice/containerd.service/pids.max":     "max",
		"sys/fs/cgroup/system.slice/containerd.service/pids.current": "20",
		"sys/module/apparmor/parameters/enabled":                     "Y",
		"sys/kernel/security/apparmor/profiles":                      "",
		"sys/fs/selinux/enforce":                                     "1",
		"sbin/apparmor_parser":                                       "",
		"run/systemd/system/x":                                       "",
		configFile:                                                   soundConfig,
		"etc/containerd-shim-sandbox-v1/config.toml":                 "StopTimeout = '5s'\n",
		task + "default/lives/shim-binary-path":                      "/usr/bin/" + program,
		stateDir + "default/lives/state.json":                        x.state("lives"),
	} {
		x.write(path, text)
	}
	x.write("usr/bin/containerd-shim-runc-v2", "")
	x.link(x.path("usr/bin/"+program), "proc/200/exe")
	x.link("mnt:[0]", "proc/200/ns/mnt")
	x.info("1.0", "")
	x.write("usr/bin/"+program, "#!/bin/sh\nexec cat "+x.path("usr/bin/info")+"\n")
	x.chmod("usr/bin/"+program, 0o755)
	x.link("/usr/bin/containerd", "proc/100/exe")
	for i, kind := range []string{"mnt", "pid", "ipc", "uts", "net", "cgroup", "user"} {
		x.write("proc/sys/user/max_"+kind+"_namespaces", "1000")
		x.link(fmt.Sprintf("%s:[%d]", kind, i), "proc/100/ns/"+kind)
	}
	x.must(unix.Setxattr(x.path("sys/fs/cgroup/system.slice/containerd.service"), "trusted.delegate", []byte("1"), 0))
	x.old(configFile)
	return x
}

// state is what libcontainer writes of a container.
func (x *tree) state(id string) string {
	return fmt.Sprintf(`{"cgroup_paths": {"": "/sys/fs/cgroup/default/%s"}, "config": {"labels":
		["bundle=/run/containerd/io.containerd.runtime.v2.task/default/%s"]}}`, id, id)
}

func (x *tree) path(name string) string { return filepath.Join(x.root, name) }

func (x *tree) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

func (x *tree) write(name, text string) {
	x.Helper()
	x.must(os.MkdirAll(filepath.Dir(x.path(name)), 0o755))
	x.must(os.WriteFile(x.path(name), []byte(text), 0o644))
}

func (x *tree) chmod(name string, mode fs.FileMode) { x.Helper(); x.must(os.Chmod(x.path(name), mode)) }

func (x *tree) link(target, name string) {
	x.Helper()
	x.must(os.MkdirAll(filepath.Dir(x.path(name)), 0o755))
	x.must(os.Symlink(target, x.path(name)))
}

func (x *tree) remove(name string) { x.Helper(); x.must(os.RemoveAll(x.path(name))) }

// old makes a file and the directories around it older than what may just be made.
func (x *tree) old(name string) {
	x.Helper()
	for at := x.path(name); at != x.root; at = filepath.Dir(at) {
		x.must(os.Chtimes(at, time.Time{}, time.Unix(1_600_000_000, 0)))
	}
}

// replace changes a part of a file.
func (x *tree) replace(name, from, to string) {
	x.Helper()
	text, err := os.ReadFile(x.path(name))
	x.must(err)
	if !strings.Contains(string(text), from) {
		x.Fatalf("%s has no %q", name, from)
	}
	x.write(name, strings.ReplaceAll(string(text), from, to))
}

// info lets the shim say its version, and what is wrong with the default configuration file.
func (x *tree) info(version, problem string) {
	x.Helper()
	answer, err := proto.Marshal(&types.RuntimeInfo{
		Version: &types.RuntimeVersion{Version: version}, Annotations: map[string]string{runtimeName + "/config.error": problem},
	})
	x.must(err)
	x.write("usr/bin/info", string(answer))
}

// listen makes a socket. The listener stays until the test ends, or is closed at once and leaves the file.
func (x *tree) listen(name string, stays bool) {
	x.Helper()
	x.must(os.MkdirAll(filepath.Dir(x.path(name)), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: x.path(name), Net: "unix"})
	x.must(err)
	l.SetUnlinkOnClose(false)
	if stays {
		x.Cleanup(func() { _ = l.Close() })
		return
	}
	x.must(l.Close())
}

// bundle adds one of a container whose shim is dead.
func (x *tree) bundle(id string) {
	x.Helper()
	x.write(task+"default/"+id+"/shim-binary-path", "/usr/bin/"+program)
	x.write(task+"default/"+id+"/address", "unix:///"+socketDir+id)
}

// orphan adds process 300, a shim that has no bundle.
func (x *tree) orphan(id string) {
	x.Helper()
	x.shimProcess(300, id)
	x.write("proc/300/task/300/children", "")
}

func (x *tree) shimProcess(pid int, id string) {
	x.Helper()
	proc := fmt.Sprintf("proc/%d/", pid)
	x.write(proc+"cmdline", strings.ReplaceAll(
		program+" -namespace default -id "+id+" -address /run/containerd/containerd.sock", " ", "\x00")+"\x00")
	x.link(x.path("usr/bin/"+program), proc+"exe")
	x.link("mnt:[0]", proc+"ns/mnt")
}

// withhold makes a command line that cannot be read.
func (x *tree) withhold(pid int) {
	x.Helper()
	path := fmt.Sprintf("proc/%d/cmdline", pid)
	x.remove(path)
	x.must(os.MkdirAll(filepath.Dir(x.path(path)), 0o755))
	x.must(unix.Mkfifo(x.path(path), 0o600))
	x.Cleanup(func() { // whoever waits reads its end
		f, err := os.OpenFile(x.path(path), os.O_RDWR, 0)
		x.must(err)
		x.must(f.Close())
	})
}

// config says how the tree is examined.
func (x *tree) config() Config {
	return Config{
		Root: machine.Root(x.root), Address: "/run/containerd/containerd.sock", Version: "1.0", Timeout: 10 * time.Second,
		Probes: Probes{
			Euid:     x.euid,
			Features: func() map[string]error { return withAll(x.missing) },
			Peer: func(context.Context, string) (int, error) {
				if x.down {
					return 0, unix.ECONNREFUSED
				}
				return daemonPid, nil
			},
			Dump:    func(context.Context, Daemon) ([]byte, error) { return os.ReadFile(x.path(configFile)) },
			Connect: func(context.Context, node.Config) (API, error) { return x, nil },
		},
	}
}

func withAll(missing map[string]error) map[string]error {
	all := map[string]error{"openat2": nil, recursiveAttributes: nil}
	maps.Copy(all, missing)
	return all
}

// tree is the API of a containerd.

func (x *tree) Close() error { return nil }

func (x *tree) Version(context.Context) (string, error) { return x.version, x.answer() }

func (x *tree) Known(_ context.Context, add func(namespace, id string)) error {
	for n := range x.known {
		add(n.Namespace, n.ID)
	}
	return x.answer()
}

func (x *tree) answer() error {
	if x.silent {
		return errors.New("deadline exceeded")
	}
	return nil
}

// result finds what a check found.
func (r Report) result(t *testing.T, name string) Result {
	t.Helper()
	for _, c := range r.Checks {
		if c.Check == name {
			return c
		}
	}
	t.Fatalf("no check %q", name)
	return Result{}
}
