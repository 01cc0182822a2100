// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

func in(change func(*runtimeapi.NamespaceOption)) func(*runtimeapi.PodSandboxConfig) {
	return func(c *runtimeapi.PodSandboxConfig) { change(c.GetLinux().GetSecurityContext().GetNamespaceOptions()) }
}

// namespace names the namespace of a process: net:[4026531840], say.
func (e *env) namespace(pid int, kind string) string {
	e.Helper()
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	e.must(err, "namespace")
	return name
}

// A kubelet gives a container the mode of its pod. Other clients may give it another, or none, which is POD.
func TestNamespace_PIDsAreNotTheHostsUnlessThePodsAre(t *testing.T) {
	const own = runtimeapi.NamespaceMode_CONTAINER
	for _, tt := range []struct {
		name           string
		pod, container runtimeapi.NamespaceMode
		users          bool
	}{
		{"own, a container that says nothing", own, ofPod, false},
		{"own, a container with the host's", own, ofNode, false},
		{"shared, with users, a container with the host's", ofPod, ofNode, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWay(t, func(e *env) {
				changes := []func(*runtimeapi.PodSandboxConfig){in(func(o *runtimeapi.NamespaceOption) { o.Pid = tt.pod })}
				if tt.users {
					harness.NotWithOptions(e)
					changes = append(changes, ownUsers)
				}
				p := e.pod("p", changes...)
				c := p.run("c", forever, func(c *runtimeapi.ContainerConfig) {
					c.GetLinux().GetSecurityContext().GetNamespaceOptions().Pid = tt.container
				})
				if e.namespace(c.pid(), "pid") == e.namespace(os.Getpid(), "pid") {
					e.Error("its PID namespace is the machine's")
				}
				c.wantExec("none", "sh", "-c", fmt.Sprintf(
					"grep -l containerd /proc/[0-9]*/comm || test -e /proc/%d || echo none", p.info().Pid,
				))
				if e.way == cri.Shim && tt.pod == own {
					c.wantExec("sh", "cat", "/proc/1/comm")
				}
				p.remove()
			})
		})
	}
}

func TestNamespace_SharedPIDsHaveAProcessThatReaps(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p", in(func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_POD }))
		a, b := p.run("a", []string{"sh", "-c", "echo $$; exec sleep 4711"}), p.run("b", forever)
		if e.namespace(a.pid(), "pid") != e.namespace(b.pid(), "pid") {
			e.Error("a and b have different pid namespaces")
		}
		if text := b.exec("ps", "-o", "args"); !strings.Contains(text, "sleep 4711") {
			e.Errorf("b sees the processes\n%s, want a's sleep among them", text)
		}
		a.wantLog("\n")
		if got := strings.TrimSpace(a.log()); got == "1" {
			e.Error("a is process 1, want the sandbox to be it")
		}
		// The parent is gone before the child: that is then for process 1.
		orphan := strings.TrimSpace(b.exec("sh", "-c", "(sleep 0.2 & echo $!)"))
		harness.Eventually(e, "the orphan is reaped", func() error {
			if text := b.exec("sh", "-c",
				"cat /proc/"+orphan+"/stat 2>/dev/null || echo gone"); strings.TrimSpace(text) != "gone" {
				return fmt.Errorf("it is %s", text)
			}
			return nil
		})
		a.stop(0)
		a.wantExit(137)
		b.wantExec("still", "echo", "still")
		p.wantState(runtimeapi.PodSandboxState_SANDBOX_READY)
		b.end()
	})
}

// Users of a pod are these of the machine.
const (
	firstUser = 200000
	users     = 65536
)

func mapping() []*runtimeapi.IDMapping {
	return []*runtimeapi.IDMapping{{HostId: firstUser, ContainerId: 0, Length: users}}
}

// ownUsers gives a pod a user namespace, as hostUsers: false does.
func ownUsers(c *runtimeapi.PodSandboxConfig) {
	c.GetLinux().GetSecurityContext().GetNamespaceOptions().UsernsOptions = &runtimeapi.UserNamespace{
		Mode: runtimeapi.NamespaceMode_POD, Uids: mapping(), Gids: mapping(),
	}
}

func image(path, sub string, set ...func(*runtimeapi.Mount)) change {
	return func(c *runtimeapi.ContainerConfig) {
		mounted("", path, append(set, func(m *runtimeapi.Mount) {
			m.Image, m.ImageSubPath, m.Readonly = &runtimeapi.ImageSpec{Image: harness.VolumeImage}, sub, true
		})...)(c)
	}
}

func mounted(host, path string, set ...func(*runtimeapi.Mount)) change {
	return func(c *runtimeapi.ContainerConfig) {
		m := &runtimeapi.Mount{HostPath: host, ContainerPath: path}
		for _, f := range set {
			f(m)
		}
		c.Mounts = append(c.Mounts, m)
	}
}

// smallState gives a containerd that does not run yet a state directory of 32 MiB in memory, as it is in /run of a
// node.
func smallState(t *testing.T, d *cri.Daemon) {
	t.Helper()
	harness.Must(t, os.MkdirAll(d.State, 0o711))
	// d.Close unmounts it.
	harness.Must(t, unix.Mount("tmpfs", d.State, "tmpfs", 0, "mode=0711,size=32m"))
}

// powerless is a container as the restricted profile of Kubernetes has it, but for its user: the files are root's.
var powerless = security(func(s *runtimeapi.LinuxContainerSecurityContext) {
	s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
	s.NoNewPrivs = true
})

// CRI hands a shim that is the sandbox all annotations of the pod, also those that the handler does not let through.
func TestShmSize_IsNotMoreThanThereIs(t *testing.T) {
	const annotation = "io.containerd.sandbox.v1/shm-size"
	eachWay(t, func(e *env) {
		if e.way == cri.PodSandbox {
			e.Skip("containerd's own /dev/shm has one size")
		}
		asking := func(size string) func(*runtimeapi.PodSandboxConfig) {
			return func(c *runtimeapi.PodSandboxConfig) { c.Annotations = map[string]string{annotation: size} }
		}
		refused := func(want string, change ...func(*runtimeapi.PodSandboxConfig)) {
			e.Helper()
			if _, err := e.tryPod("p", change...); err == nil || !strings.Contains(err.Error(), want) {
				e.Errorf("run pod: %v, want %q in it", err, want)
			}
		}
		refused(`"8Ti": must be a size`, asking("8Ti"))
		e.handler = cri.ShimLimits
		refused(`from 1 to 134217728 (runtime option MaxShmSize)`, asking("129Mi"))
		p := e.pod("p", asking("128Mi"))
		p.run("c", forever).wantExec("128.0M", "sh", "-c", "df -h /dev/shm | awk 'END {print $2}'")
	})
}

func TestPodFiles_DoNotFillTheStateOfContainerd(t *testing.T) {
	for name, change := range map[string][]func(*runtimeapi.PodSandboxConfig){"users of the machine": nil, "users of the pod's own": {ownUsers}} {
		t.Run(name, func(t *testing.T) {
			eachWayPrepared(t, smallState, func(e *env) {
				if e.way == cri.PodSandbox {
					e.Skip("containerd's own files are in its root, on a disk")
				}
				if change != nil {
					harness.NotWithOptions(e)
				}
				p := e.pod("p", change...)
				c := p.run("c", forever, powerless)
				for _, file := range []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"} {
					r, err := c.tryExec(60, "dd", "if=/dev/zero", "of="+file, "bs=64k", "count=1024")
					e.must(err, "exec")
					if r.GetExitCode() == 0 || !strings.Contains(string(r.GetStderr()), "No space left on device") {
						e.Errorf("64 MiB in %s: exit code %d, %s, want that there is no space", file, r.GetExitCode(),
							r.GetStderr())
					}
				}
				var state unix.Statfs_t
				e.must(unix.Statfs(e.daemon.State, &state), "room in the state directory")
				if free := state.Bavail * uint64(state.Bsize); free < 30<<20 {
					e.Errorf("the state directory has %d bytes left of 32 MiB", free)
				}
				e.wantPodWorks()
				p.remove()
			})
		})
	}
}

const (
	ofPod  = runtimeapi.NamespaceMode_POD
	ofNode = runtimeapi.NamespaceMode_NODE
)

func TestNamespace_ContainersShareThePodsButPIDs(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		a, b := p.run("a", forever), p.run("b", forever)
		sandbox := p.info().Pid
		for _, kind := range []string{"net", "ipc", "uts"} {
			got := []string{e.namespace(a.pid(), kind), e.namespace(b.pid(), kind), e.namespace(sandbox, kind)}
			if len(slices.Compact(got)) != 1 || got[0] == e.namespace(os.Getpid(), kind) {
				e.Errorf("%s of a, b and the pod = %q, want one that is not the machine's", kind, got)
			}
		}
		for _, kind := range []string{"pid", "mnt"} {
			if e.namespace(a.pid(), kind) == e.namespace(b.pid(), kind) {
				e.Errorf("a and b have the same %s namespace", kind)
			}
		}
		a.wantExec("sh", "cat", "/proc/1/comm")

		a.exec("sh", "-c", "echo shared >/dev/shm/file")
		e.pod("other").run("c", forever).wantExec("", "ls", "/dev/shm")
		const size = 64 << 10 // KiB: what Kubernetes promises
		a.wantExec(fmt.Sprint(size), "sh", "-c", "df -k /dev/shm | awk 'NR==2 {print $2}'")
		a.wantExec("1777", "stat", "-c", "%a", "/dev/shm")

		debug := p.run("debug", forever, func(c *runtimeapi.ContainerConfig) { // an ephemeral one
			o := c.GetLinux().GetSecurityContext().GetNamespaceOptions()
			o.Pid, o.TargetId = runtimeapi.NamespaceMode_TARGET, a.id
		})
		if e.namespace(debug.pid(), "pid") != e.namespace(a.pid(), "pid") {
			e.Error("the container has another pid namespace than its target")
		}
		debug.end()
		a.end()
		a.remove()
		b.wantExec("shared", "cat", "/dev/shm/file")
	})
}

// Users, files, volumes and images of a pod with a user namespace.
func TestUserNamespace_PodHasUsersOfItsOwn(t *testing.T) {
	harness.NotWithOptions(t)
	eachWay(t, func(e *env) {
		dir := e.volume()
		for name, owner := range map[string]int{"roots": 0, "testers": 1000} {
			path := filepath.Join(dir, name)
			e.must(os.WriteFile(path, []byte(name), 0o600), "write")
			e.must(os.Chown(path, owner, owner), "chown")
		}
		mapped := func(m *runtimeapi.Mount) { m.UidMappings, m.GidMappings = mapping(), mapping() }
		p := e.pod("p", ownUsers)
		a, b := p.run("a", forever, mounted(dir, "/mapped", mapped), mounted(dir, "/plain"), image("/image", "", mapped)),
			p.run("b", forever)
		for _, file := range []string{"uid_map", "gid_map"} {
			a.wantExec(fmt.Sprintf("0 %d %d", firstUser, users), "sh", "-c", "echo $(cat /proc/self/"+file+")")
		}
		owner := func(path string) uint32 {
			var st unix.Stat_t
			e.must(unix.Stat(path, &st), "owner of "+path)
			if st.Uid != st.Gid {
				e.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
			}
			return st.Uid
		}
		if got := owner(fmt.Sprintf("/proc/%d", a.pid())); got != firstUser {
			e.Errorf("the container's root is %d, want %d", got, firstUser)
		}
		if e.namespace(a.pid(), "user") != e.namespace(b.pid(), "user") {
			e.Error("a and b have different user namespaces")
		}
		a.exec("sh", "-c", "echo text >/root/file && chown 1000:1000 /root/file && echo new >/mapped/new")
		a.wantExec("rootshello", "cat", "/mapped/roots", "/image/"+harness.Greeting)
		a.wantExec("0 0 0 0 1000 1000 65534", "sh", "-c", "echo $(stat -c %u /bin/busybox /etc/hosts /dev/mqueue /image/"+
			harness.Greeting+" /root/file /mapped/testers /plain/roots)") // the queues are of the IPC namespace
		if got := owner(filepath.Join(dir, "new")); got != 0 {
			e.Errorf("a file of the container's root belongs to %d, want 0", got)
		}
		a.exec("sh", "-c", "echo shared >/dev/shm/file")
		b.wantExec("shared", "cat", "/dev/shm/file")
		// It is root of its own network and name, not of the machine.
		a.exec("ip", "link", "show", "eth0")
		a.wantExec("refused", "sh", "-c", "echo x 2>/dev/null >/proc/sys/kernel/core_pattern || echo refused")
		a.wantExec("p", "hostname")
	})
}

// Each container of the pod has its files, or those that a kubelet mounts in their place.
func TestPodFiles_AreThePodsOrTheHosts(t *testing.T) {
	machine := func(name string) string {
		text, err := os.ReadFile(name)
		harness.Must(t, err)
		return strings.TrimSpace(string(text))
	}
	// As much as Kubernetes lets through: 32 domains of 2048 bytes in all.
	var searches []string
	for range 32 {
		searches = append(searches, strings.Repeat("a", 30)+"."+strings.Repeat("b", 30)+".d")
	}
	dns := &runtimeapi.DNSConfig{
		Servers: []string{"10.0.0.10", "fd00::10"}, Searches: searches, Options: []string{"ndots:5", "edns0"},
	}
	eachWay(t, func(e *env) {
		c := e.pod("name-of-pod", func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig = dns }).run("c", forever)
		c.wantExec("search "+strings.Join(searches, " ")+"\nnameserver 10.0.0.10\nnameserver fd00::10\noptions ndots:5 edns0",
			"cat", "/etc/resolv.conf")
		p := e.pod("machines")
		plain := p.run("c", forever)
		plain.wantExec(machine("/etc/resolv.conf"), "cat", "/etc/resolv.conf")
		plain.wantExec(machine("/etc/hosts"), "cat", "/etc/hosts")
		c.wantExec("name-of-pod name-of-pod name-of-pod name-of-pod", "sh", "-c",
			"echo $(hostname) $(cat /etc/hostname /proc/sys/kernel/hostname) $HOSTNAME")
		p.run("own", forever, mounted(e.file("hosts", "10.1.2.3 alias\n"), "/etc/hosts")).wantExec("10.1.2.3 alias", "cat", "/etc/hosts")
	})
}
