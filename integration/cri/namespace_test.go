// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// in changes which namespaces a pod has.
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
	})
}

func TestNamespace_ModesOfTheHost(t *testing.T) {
	const node = runtimeapi.NamespaceMode_NODE
	for _, tt := range []struct {
		name, kind string
		set        func(*runtimeapi.NamespaceOption)
	}{
		{"network", "net", func(o *runtimeapi.NamespaceOption) { o.Network = node }},
		{"IPC", "ipc", func(o *runtimeapi.NamespaceOption) { o.Ipc = node }},
		{"PID", "pid", func(o *runtimeapi.NamespaceOption) { o.Pid = node }},
		{"all", "net ipc pid", func(o *runtimeapi.NamespaceOption) { o.Network, o.Ipc, o.Pid = node, node, node }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWay(t, func(e *env) {
				p := e.pod("p", in(tt.set), func(c *runtimeapi.PodSandboxConfig) {
					if strings.Contains(tt.kind, "net") {
						c.Hostname = "" // as a kubelet has it: the machine's
					}
				})
				c := p.run("c", forever)
				for _, kind := range []string{"net", "ipc", "pid"} {
					shared := e.namespace(c.pid(), kind) == e.namespace(os.Getpid(), kind)
					if want := strings.Contains(tt.kind, kind); shared != want {
						e.Errorf("%s namespace is the machine's: %v, want %v", kind, shared, want)
					}
				}
				if strings.Contains(tt.kind, "net") {
					c.wantExec("yes", "sh", "-c", "ifconfig lo >/dev/null && echo yes")
					name, err := os.Hostname()
					e.must(err, "name of the machine")
					c.wantExec(name, "hostname")
				}
				c.end()
				p.remove()
			})
		})
	}
}

// A kubelet gives a container the mode of its pod. Other clients may give it another, or none, which is POD.
func TestNamespace_PIDsAreNotTheHostsUnlessThePodsAre(t *testing.T) {
	const podMode, own, node = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE
	for _, tt := range []struct {
		name           string
		pod, container runtimeapi.NamespaceMode
		users          bool
	}{
		{"own, a container that says nothing", own, podMode, false},
		{"own, a container with the host's", own, node, false},
		{"own, with users", own, podMode, true},
		{"shared, a container with the host's", podMode, node, false},
		{"shared, with users", podMode, node, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWay(t, func(e *env) {
				changes := []func(*runtimeapi.PodSandboxConfig){in(func(o *runtimeapi.NamespaceOption) { o.Pid = tt.pod })}
				if tt.users {
					changes = append(changes, ownUsers)
				}
				p := e.pod("p", changes...)
				c := p.run("c", forever, func(c *runtimeapi.ContainerConfig) {
					c.GetLinux().GetSecurityContext().GetNamespaceOptions().Pid = tt.container
				})
				if e.namespace(c.pid(), "pid") == e.namespace(os.Getpid(), "pid") {
					e.Error("its PID namespace is the machine's")
				}
				c.wantExec("none", "sh", "-c", fmt.Sprintf("grep -l containerd /proc/[0-9]*/comm || test -e /proc/%d || echo none", p.info().Pid))
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
		p.remove()
	})
}

func TestNamespace_EphemeralContainerJoinsItsTargetsPIDs(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		target := p.run("target", []string{"sleep", "4711"})
		debug := p.run("debug", forever, func(c *runtimeapi.ContainerConfig) {
			o := c.GetLinux().GetSecurityContext().GetNamespaceOptions()
			o.Pid, o.TargetId = runtimeapi.NamespaceMode_TARGET, target.id
		})
		if e.namespace(debug.pid(), "pid") != e.namespace(target.pid(), "pid") {
			e.Error("the container has another pid namespace than its target")
		}
		debug.wantExec("sleep\x004711", "sh", "-c", "head -c 10 /proc/1/cmdline")
		debug.end()
		target.wantExec("alive", "echo", "alive")
		p.remove()
	})
}

func TestNetwork_LocalhostInsideAndAnAddressOutside(t *testing.T) {
	eachWay(t, func(e *env) {
		p, other := e.pod("p"), e.pod("other")
		web := p.run("web", []string{
			"sh", "-c",
			"mkdir /tmp/www && echo hello >/tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www",
		})
		client, stranger := p.run("client", forever), other.run("stranger", forever)
		harness.Eventually(e, "a listener",
			func() error { return web.succeeds("sh", "-c", "cat /proc/net/tcp* | grep -qi :1F90") })
		address := p.status().GetNetwork().GetIp()
		if net.ParseIP(address) == nil || address == other.status().GetNetwork().GetIp() {
			e.Errorf("address of the pod = %q, want one that the other pod has not", address)
		}
		client.wantExec("hello", "wget", "-qO-", "http://localhost:8080/")
		stranger.wantExec("hello", "wget", "-qO-", "http://"+address+":8080/")
		if got := e.get("http://" + address + ":8080/"); got != "hello\n" {
			e.Errorf("from the machine = %q, want hello", got)
		}
		if stranger.succeeds("wget", "-qO-", "-T1", "http://localhost:8080/") == nil {
			e.Error("another pod reaches it on localhost")
		}
	})
}

func TestNetwork_PortOfTheHostLeadsToThePod(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p", func(c *runtimeapi.PodSandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: 18080}}
		})
		p.run("web", []string{
			"sh", "-c",
			"mkdir /tmp/www && echo hello >/tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www",
		})
		harness.Eventually(e, "an answer", func() error {
			conn, err := net.Dial("tcp", p.status().GetNetwork().GetIp()+":8080")
			if err == nil {
				err = conn.Close()
			}
			return err
		})
		if got := e.get("http://10.88.0.1:18080/"); got != "hello\n" {
			e.Errorf("through the port = %q, want hello", got)
		}
	})
}

func TestNamespace_ContainersShareTheMemoryOfThePod(t *testing.T) {
	eachWay(t, func(e *env) {
		p, other := e.pod("p"), e.pod("other")
		a, b, c := p.run("a", forever), p.run("b", forever), other.run("c", forever)
		a.exec("sh", "-c", "echo shared >/dev/shm/file")
		b.wantExec("shared", "cat", "/dev/shm/file")
		c.wantExec("", "ls", "/dev/shm")
		const size = 64 << 10 // KiB: what Kubernetes promises
		a.wantExec(fmt.Sprint(size), "sh", "-c", "df -k /dev/shm | awk 'NR==2 {print $2}'")
		a.wantExec("1777", "stat", "-c", "%a", "/dev/shm")
		a.end()
		a.remove()
		b.wantExec("shared", "cat", "/dev/shm/file")
	})
}
