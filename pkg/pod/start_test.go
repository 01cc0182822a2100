// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

func TestStart_MainThreadHoldsTheNamespaces(t *testing.T) {
	path := pinned(t, 0)
	p := start(t, request(t, func(r *Request) { r.Config.NetNS = path }))
	if p.Pid() != os.Getpid() {
		t.Errorf("Pid() = %d, want that of this process, %d", p.Pid(), os.Getpid())
	}
	self := strconv.Itoa(p.Pid())
	for name, pods := range map[string]bool{"net": true, "ipc": true, "uts": true, "mnt": false, "pid": false, "user": false, "cgroup": false} {
		got, host := namespace(t, self, name), namespace(t, "thread-self", name)
		if (got != host) != pods {
			t.Errorf("%s namespace of the pid = %s, the host's is %s, want another: %t", name, got, host, pods)
		}
	}
	if got, want := namespace(t, self, "net"), inode(t, path, "net"); got != want {
		t.Errorf("net namespace = %s, want the given one, %s", got, want)
	}
	var hostname string
	if err := inNamespaces(p.Pid(), unix.CLONE_NEWUTS, func() (err error) { hostname, err = os.Hostname(); return err }); err != nil {
		t.Fatal(err)
	}
	if host, err := os.Hostname(); hostname != "web-0" || host == hostname || err != nil {
		t.Errorf("host name in the pod = %q, of the host %q (%v), want web-0 in the pod only", hostname, host, err)
	}
}

func TestHostname_IsTheHostsByDefault(t *testing.T) {
	host, err := os.Hostname()
	testx.Must(t, err)
	for _, pid := range []Mode{ModeContainer, ModePod} { // on the main thread, and in a process
		t.Run(fmt.Sprint(pid), func(t *testing.T) {
			p := start(t, request(t, func(r *Request) { r.Config.Hostname, r.Config.PID = "", pid }))
			var name string
			if err := inNamespaces(p.Pid(), unix.CLONE_NEWUTS, func() (err error) { name, err = os.Hostname(); return err }); err != nil || name != host {
				t.Errorf("host name in the pod = %q (%v), want the host's, %q", name, err, host)
			}
		})
	}
}

// 200 threads at once, and children of theirs.
func TestStart_OtherThreadsStayInTheHostsNamespaces(t *testing.T) {
	names := []string{"net", "ipc", "uts"}
	want := map[string]string{}
	for _, name := range names {
		want[name] = namespace(t, "thread-self", name)
	}
	p := start(t, request(t))
	if p.Pid() != os.Getpid() {
		t.Fatal("the main thread is not the pod")
	}
	defer testReaper.Suspend()()
	var together, done sync.WaitGroup
	const threads = 200
	together.Add(threads)
	for i := range threads {
		done.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this
			together.Done()
			together.Wait() // so none of these is the thread of another
			if unix.Gettid() == os.Getpid() {
				t.Error("a goroutine runs on the main thread")
			}
			for _, name := range names {
				if got := namespace(t, "thread-self", name); got != want[name] {
					t.Errorf("%s namespace of a thread = %s, want the host's, %s", name, got, want[name])
				}
			}
			if i%20 != 0 {
				return
			}
			out, err := exec.CommandContext(t.Context(), "readlink", "/proc/self/ns/net", "/proc/self/ns/ipc", "/proc/self/ns/uts").Output()
			if got := strings.Fields(string(out)); err != nil || len(got) != 3 || got[0] != want["net"] || got[1] != want["ipc"] || got[2] != want["uts"] {
				t.Errorf("namespaces of a child = %q, %v, want the host's, %v", got, err, want)
			}
		})
	}
	done.Wait()
}

func TestStart_Modes(t *testing.T) {
	user := &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	for name, test := range map[string]struct {
		config Config
		pods   []string // namespaces that are not the host's
		child  bool
	}{
		"all of the host":                    {Config{Network: ModeNode, PID: ModeNode, IPC: ModeNode}, nil, false},
		"network of the host":                {Config{Network: ModeNode, PID: ModeContainer}, []string{"ipc"}, false},
		"ipc of the host":                    {Config{PID: ModeContainer, IPC: ModeNode}, []string{"net", "uts"}, false},
		"pids of the host":                   {Config{PID: ModeNode}, []string{"net", "uts", "ipc"}, false},
		"pids shared":                        {Config{}, []string{"net", "uts", "ipc", "pid", "mnt"}, true},
		"pids shared, the rest of the host":  {Config{Network: ModeNode, IPC: ModeNode}, []string{"pid", "mnt"}, true},
		"users":                              {Config{PID: ModeContainer, User: user}, []string{"net", "uts", "ipc", "user", "mnt"}, true},
		"users, and pids shared":             {Config{User: user}, []string{"net", "uts", "ipc", "user", "pid", "mnt"}, true},
		"users, and the network of the host": {Config{PID: ModeContainer, Network: ModeNode, User: user}, []string{"ipc", "user", "mnt"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, request(t, func(r *Request) { r.Config = test.config }))
			if child := p.Pid() != os.Getpid(); child != test.child {
				t.Errorf("Pid() = %d of process %d, want a child: %t", p.Pid(), os.Getpid(), test.child)
			}
			var got []string
			for _, name := range []string{"net", "uts", "ipc", "user", "pid", "mnt", "cgroup", "time"} {
				if namespace(t, strconv.Itoa(p.Pid()), name) != namespace(t, "thread-self", name) {
					got = append(got, name)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(test.pods) {
				t.Errorf("namespaces other than the host's = %v, want %v", got, test.pods)
			}
			if test.child {
				for _, name := range []string{"net", "uts", "ipc"} {
					if got, host := namespace(t, "self", name), namespace(t, "thread-self", name); got != host {
						t.Errorf("%s namespace of the main thread = %s, want the host's, %s", name, got, host)
					}
				}
			}
		})
	}
}

var mapping = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 200000, Size: 65536}}

// inUserNamespace is a network namespace that CRI made inside the user namespace of the pod.
func inUserNamespace(t *testing.T, ids []specs.LinuxIDMapping) string {
	t.Helper()
	h, err := startHolder(t.Context(), holderConfig{Make: unix.CLONE_NEWNET, Map: &idmap.Mappings{UIDs: ids, GIDs: ids}, UID: 1, GID: 1}, thread, testReaper)
	testx.Must(t, err)
	path := pinned(t, h.Pid())
	testx.Must(t, h.Kill(t.Context()))
	return path
}

func TestUserNamespace_IsTheOwnerOfTheNetwork(t *testing.T) {
	path := inUserNamespace(t, mapping)
	p := start(t, request(t, func(r *Request) {
		r.Config.NetNS, r.Config.User = path, &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	}))
	if got, want := namespace(t, strconv.Itoa(p.Pid()), "net"), inode(t, path, "net"); got != want {
		t.Errorf("net namespace = %s, want the given one, %s", got, want)
	}
	file, err := os.Open(path)
	testx.Must(t, err)
	defer file.Close()
	owner, err := ownerOf(file)
	if err != nil || owner == nil {
		t.Fatalf("ownerOf(network) = %v, %v, want a user namespace", owner, err)
	}
	defer owner.Close()
	got, want := namespace(t, strconv.Itoa(p.Pid()), "user"), inode(t, fmt.Sprintf("/proc/self/fd/%d", owner.Fd()), "user")
	if got != want {
		t.Errorf("user namespace = %s, want the owner of the network, %s", got, want)
	}
}

func TestStart_FailureLeavesNothingAndCanBeTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Request)
		want   string
	}{
		"a sysctl without a file": {
			func(r *Request) { r.Config.Sysctls = map[string]string{"net.ipv4.no_such_thing": "1"} },
			`sysctl "net.ipv4.no_such_thing" = "1": open /proc/sys/net/ipv4/no_such_thing: no such file`,
		},
		"a value that the kernel refuses": {
			func(r *Request) { r.Config.Sysctls = map[string]string{"kernel.shm_rmid_forced": "many"} },
			`sysctl "kernel.shm_rmid_forced" = "many": write /proc/sys/kernel/shm_rmid_forced: invalid argument`,
		},
		"a sysctl without a file, with a child": {
			func(r *Request) {
				r.Config.PID, r.Config.Sysctls = ModePod, map[string]string{"net.ipv4.no_such_thing": "1"}
			},
			`no_such_thing`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := create(t, request(t, test.change))
			before := descriptors(t)
			for range 2 {
				err := p.Start(t.Context())
				if err == nil || !strings.Contains(err.Error(), test.want) || !errdefs.IsInvalidArgument(err) {
					t.Errorf("Start() = %v, want %q of class %v", err, test.want, errdefs.ErrInvalidArgument)
				}
			}
			// What waits for the end of a holder closes its descriptors afterwards.
			testx.Eventually(t, "that no descriptor is left", func() bool { return descriptors(t) <= before })
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			nothingLeft(t, p.Bundle)
		})
	}
}

// The last step fails on the main thread, which is in three namespaces by then.
func TestStart_FailureReturnsTheMainThread(t *testing.T) {
	path := pinned(t, 0)
	p := create(t, request(t, func(r *Request) { r.Config.NetNS = path }))
	p.Config.Hostname = strings.Repeat("a", 65)
	if err := p.Start(t.Context()); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), `set host name "aaa`) {
		t.Errorf("Start() = %v, want %v of the host name", err, unix.EINVAL)
	}
	for _, name := range []string{"net", "ipc", "uts"} {
		if got, want := namespace(t, "self", name), namespace(t, "thread-self", name); got != want {
			t.Errorf("%s namespace of the main thread = %s, want the host's, %s", name, got, want)
		}
	}
	p.Config.Hostname = "a"
	if err := p.Start(t.Context()); err != nil {
		t.Errorf("Start() again = %v", err)
	}
}

// A pod of its own network has an interface lo that is up, as runc gives one.
func TestStart_OwnNetworkHasALoopback(t *testing.T) {
	for _, mode := range []Mode{ModeContainer, ModePod} {
		p := start(t, request(t, func(r *Request) { r.Config.PID = mode }))
		err := inNamespaces(p.Pid(), unix.CLONE_NEWNET, func() error {
			data, err := os.ReadFile("/proc/thread-self/net/if_inet6")
			if err != nil || !strings.Contains(string(data), "lo") {
				return fmt.Errorf("addresses %q, %w", data, err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("PID mode %d: %v, want lo", mode, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSysctls_Names(t *testing.T) {
	for name, want := range map[string]string{
		"kernel.shmmax":                    "/proc/sys/kernel/shmmax",
		"net.ipv4.conf.eno2/100.rp_filter": "/proc/sys/net/ipv4/conf/eno2.100/rp_filter",
	} {
		if got := sysctlPath(name); got != want {
			t.Errorf("sysctl %q is at %q, want %q", name, got, want)
		}
	}
}

// sysctls are one of each namespace, with values that no host has.
var sysctls = map[string]string{
	"net.ipv4.ip_unprivileged_port_start": "77",
	"net.ipv4.ip_forward":                 "1",
	"net.ipv4.ping_group_range":           "0 1000",
	"kernel.shm_rmid_forced":              "1",
	"kernel.sem":                          "250 32001 31 127",
	"fs.mqueue.msg_max":                   "11",
	"kernel.domainname":                   "pod.example",
}

func read(t *testing.T, keys map[string]string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for key := range keys {
		data, err := os.ReadFile(sysctlPath(key))
		if err != nil {
			t.Error(err)
		}
		got[key] = strings.Join(strings.Fields(string(data)), " ")
	}
	return got
}

func TestSysctls_AreThePods(t *testing.T) {
	for name, config := range map[string]Config{
		"main thread":             {PID: ModeContainer},
		"a process":               {PID: ModePod},
		"a user namespace":        {PID: ModeContainer, User: &idmap.Mappings{UIDs: mapping, GIDs: mapping}},
		"a user namespace of CRI": {PID: ModePod, User: &idmap.Mappings{UIDs: mapping, GIDs: mapping}, NetNS: "user"},
	} {
		t.Run(name, func(t *testing.T) {
			if config.NetNS == "user" {
				config.NetNS = inUserNamespace(t, mapping)
			}
			before := read(t, sysctls)
			config.Sysctls = sysctls
			p := start(t, request(t, func(r *Request) { r.Config = config }))
			err := inNamespaces(p.Pid(), unix.CLONE_NEWNET|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS, func() error {
				for key, got := range read(t, sysctls) {
					if got != sysctls[key] {
						t.Errorf("%s in the pod = %q, want %q", key, got, sysctls[key])
					}
				}
				return nil
			})
			testx.Must(t, err)
			if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 1 || os.Geteuid() != 0 {
				t.Errorf("the shim is dumpable: %d (%v), and user %d, want 1 and 0", dumpable, err, os.Geteuid())
			}
			for key, got := range read(t, sysctls) {
				if got != before[key] {
					t.Errorf("%s of the host was %q and is %q", key, before[key], got)
				}
			}
		})
	}
}
