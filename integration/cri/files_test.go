// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mounted mounts a path of the machine.
func mounted(host, path string, set ...func(*runtimeapi.Mount)) change {
	return func(c *runtimeapi.ContainerConfig) {
		m := &runtimeapi.Mount{HostPath: host, ContainerPath: path}
		for _, f := range set {
			f(m)
		}
		c.Mounts = append(c.Mounts, m)
	}
}

func TestPodFiles_HostnameIsThePods(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("name-of-pod")
		c := p.run("c", forever)
		c.wantExec("name-of-pod", "hostname")
		c.wantExec("name-of-pod", "cat", "/etc/hostname")
		c.wantExec("name-of-pod", "cat", "/proc/sys/kernel/hostname")
		c.wantExec("name-of-pod", "sh", "-c", "echo $HOSTNAME")
	})
}

func TestPodFiles_HostsIsTheKubeletsOrTheHosts(t *testing.T) {
	eachWay(t, func(e *env) {
		own := e.file("hosts", "127.0.0.1 localhost\n10.1.2.3 alias.example alias\n")
		p := e.pod("p")
		a, b := p.run("a", forever, mounted(own, "/etc/hosts")), p.run("b", forever)
		a.wantExec("10.1.2.3 alias.example alias", "grep", "alias", "/etc/hosts")
		machines, err := os.ReadFile("/etc/hosts")
		e.must(err, "hosts of the machine")
		b.wantExec(strings.TrimSpace(string(machines)), "cat", "/etc/hosts")
	})
}

func TestPodFiles_DNSIsThePodsOrTheHosts(t *testing.T) {
	// As much as Kubernetes lets through: 32 domains of 2048 bytes in all.
	var searches []string
	for range 32 {
		searches = append(searches, strings.Repeat("a", 30)+"."+strings.Repeat("b", 30)+".d")
	}
	machines, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		config *runtimeapi.DNSConfig
		want   string
	}{
		{"none", nil, string(machines)},
		{
			"all", &runtimeapi.DNSConfig{
				Servers:  []string{"10.0.0.10", "fd00::10"},
				Searches: []string{"default.svc.cluster.local", "svc.cluster.local"},
				Options:  []string{"ndots:5", "edns0"},
			},
			"search default.svc.cluster.local svc.cluster.local\nnameserver 10.0.0.10\nnameserver fd00::10\noptions ndots:5 edns0\n",
		},
		{"a server", &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}}, "nameserver 10.0.0.10\n"},
		{"long", &runtimeapi.DNSConfig{Searches: searches}, "search " + strings.Join(searches, " ") + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWay(t, func(e *env) {
				p := e.pod("p", func(c *runtimeapi.PodSandboxConfig) { c.DnsConfig = tt.config })
				c := p.run("c", forever)
				if got := c.exec("cat", "/etc/resolv.conf"); got != tt.want {
					e.Errorf("resolv.conf = %q, want %q", got, tt.want)
				}
				own := p.run("own", forever,
					mounted(e.file("resolv.conf", "nameserver 192.0.2.1\n"), "/etc/resolv.conf"))
				own.wantExec("nameserver 192.0.2.1", "cat", "/etc/resolv.conf")
			})
		})
	}
}

func TestVolume_OfTheHost(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		dir := e.volume()
		c := p.run("c", forever, mounted(dir, "/rw"),
			mounted(dir, "/ro", func(m *runtimeapi.Mount) { m.Readonly = true }))
		c.exec("sh", "-c", "echo text >/rw/file")
		c.wantExec("text", "cat", "/ro/file")
		c.wantExec("refused", "sh", "-c", "echo x 2>/dev/null >/ro/file || echo refused")
		text, err := os.ReadFile(filepath.Join(dir, "file"))
		if string(text) != "text\n" {
			e.Errorf("file on the machine = %q, %v, want text", text, err)
		}
	})
}
