// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

func TestCreate_MakesTheFiles(t *testing.T) {
	hosts, err := readHost("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost\n")
	testx.Must(t, err)
	resolv, err := readHost("/etc/resolv.conf", "")
	testx.Must(t, err)
	name, err := os.Hostname()
	testx.Must(t, err)
	dns := &DNSConfig{Servers: []string{"10.0.0.10", "fe80::1%eth0"}, Searches: []string{"a.svc", "b"}, Options: []string{"ndots:5", "edns0"}}
	for title, test := range map[string]struct {
		config                  Config
		hostname, hosts, resolv string
	}{
		"what is asked for": {Config{Hostname: "web-0", CRI: &CRIConfig{DNS: dns}}, "web-0\n", hosts, "search a.svc b\nnameserver 10.0.0.10\nnameserver fe80::1%eth0\noptions ndots:5 edns0\n"},
		"the host's":        {Config{}, name + "\n", hosts, resolv},
		"what libc ignores": { // the node's resolv.conf may have it, and the kubelet passes it on
			Config{Hostname: "a", CRI: &CRIConfig{DNS: &DNSConfig{Servers: []string{"10.96.000.010", "8.8.8.8#x", "dns.example", "1.1.1.1"}}}},
			"a\n", hosts, "nameserver 10.96.000.010\nnameserver 8.8.8.8#x\nnameserver dns.example\nnameserver 1.1.1.1\n",
		},
		"an empty DNS": {Config{Hostname: "a", CRI: &CRIConfig{DNS: &DNSConfig{}}}, "a\n", hosts, ""},
	} {
		t.Run(title, func(t *testing.T) {
			old := unix.Umask(0o077) // what containerd has does not matter
			p := create(t, request(t, func(r *Request) { r.Config = test.config }))
			unix.Umask(old)
			for file, want := range map[string]string{"hostname": test.hostname, "hosts": test.hosts, "resolv.conf": test.resolv} {
				path := filepath.Join(p.Bundle, "etc", file)
				got, err := os.ReadFile(path)
				if err != nil || string(got) != want {
					t.Errorf("%s = %q, %v, want %q", file, got, err, want)
				}
				if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
					t.Errorf("mode of %s = %v, %v, want 0644", file, info, err)
				}
			}
		})
	}
}

func TestCreate_MountsSharedMemory(t *testing.T) {
	for value, want := range map[string]uint64{"": 64 << 20, "1Mi": 1 << 20, "1048576": 1 << 20, "2M": 2e6, "1Gi": 1 << 30} {
		t.Run(value, func(t *testing.T) {
			p := create(t, request(t, func(r *Request) {
				r.MaxShmSize = 1 << 30 // be the machine never so small
				if value != "" {
					r.Config.Annotations = map[string]string{ShmSizeAnnotation: value}
				}
			}))
			var fs unix.Statfs_t
			testx.Must(t, unix.Statfs(filepath.Join(p.Bundle, "shm"), &fs))
			// The kernel rounds up to pages.
			if got := fs.Blocks * uint64(fs.Bsize); fs.Type != unix.TMPFS_MAGIC || got < want || got >= want+uint64(os.Getpagesize()) {
				t.Errorf("shm has type %#x and %d bytes, want a tmpfs of %d", fs.Type, got, want)
			}
			if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); fs.Flags&want != want {
				t.Errorf("flags of shm = %#x, want %#x", fs.Flags, want)
			}
			if info, err := os.Stat(filepath.Join(p.Bundle, "shm")); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
				t.Errorf("mode of shm = %v, %v, want 1777", info, err)
			}
		})
	}
}

func TestCreate_FilesBelongToTheRootOfThePod(t *testing.T) {
	ids := []specs.LinuxIDMapping{{ContainerID: 1, HostID: 5, Size: 1}, {ContainerID: 0, HostID: 200000, Size: 1}}
	p := create(t, request(t, func(r *Request) { r.Config.User = &idmap.Mappings{UIDs: ids, GIDs: mapping} }))
	for _, name := range []string{"etc/hostname", "etc/hosts", "etc/resolv.conf", "shm"} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(p.Bundle, name), &st); err != nil || st.Uid != 200000 || st.Gid != 200000 {
			t.Errorf("%s belongs to %d:%d (%v), want 200000:200000", name, st.Uid, st.Gid, err)
		}
	}
}

func TestCreate_NoSharedMemoryWithTheHostsIPC(t *testing.T) {
	p := create(t, request(t, func(r *Request) { r.Config.IPC = ModeNode }))
	if _, err := os.Stat(filepath.Join(p.Bundle, "shm")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("shm in the bundle = %v, want %v", err, os.ErrNotExist)
	}
}

// Each of these is refused by name, and leaves nothing.
func TestCreate_Refuses(t *testing.T) {
	sysctl := func(key, value string) func(*Request) {
		return func(r *Request) { r.Config.Sysctls = map[string]string{key: value} }
	}
	dns := func(d DNSConfig) func(*Request) { return func(r *Request) { r.Config.CRI = &CRIConfig{DNS: &d} } }
	netns := func(path string) func(*Request) { return func(r *Request) { r.Config.NetNS = path } }
	parent := func(path string, systemd bool) func(*Request) {
		return func(r *Request) { r.Config.CgroupParent, r.SystemdCgroup = path, systemd }
	}
	shm := func(value string) func(*Request) {
		return func(r *Request) { r.Config.Annotations = map[string]string{ShmSizeAnnotation: value} }
	}
	user := func(uids, gids []specs.LinuxIDMapping) func(*Request) {
		return func(r *Request) { r.Config.User = &idmap.Mappings{UIDs: uids, GIDs: gids} }
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	testx.Must(t, unix.Mkfifo(fifo, 0o600))
	long := strings.Repeat("a", 1025)
	for name, test := range map[string]struct {
		change func(*Request)
		want   string
		class  error
	}{
		"a network of each container": {func(r *Request) { r.Config.Network = ModeContainer }, `namespace_options.network CONTAINER: must be one of [POD NODE]`, errdefs.ErrInvalidArgument},
		"an ipc of another container": {func(r *Request) { r.Config.IPC = ModeTarget }, `namespace_options.ipc TARGET: must be one of [POD NODE]`, errdefs.ErrInvalidArgument},
		"pids of another container":   {func(r *Request) { r.Config.PID = ModeTarget }, `namespace_options.pid TARGET: must be one of [POD CONTAINER NODE]`, errdefs.ErrInvalidArgument},
		"a mode that there is not":    {func(r *Request) { r.Config.PID = 17 }, `namespace_options.pid NamespaceMode(17)`, errdefs.ErrInvalidArgument},

		"a host name that is too long":     {func(r *Request) { r.Config.Hostname = long[:65] }, `must have at most 64 bytes`, errdefs.ErrInvalidArgument},
		"a host name, network of the host": {func(r *Request) { r.Config.Network = ModeNode }, `hostname "web-0": must be empty with the mode NODE`, errdefs.ErrInvalidArgument},
		"a host name of two lines":         {func(r *Request) { r.Config.Hostname = "a\nb" }, `hostname "a\nb"`, errdefs.ErrInvalidArgument},
		"a network that is not there":      {netns("/run/netns/no-such"), `network namespace "/run/netns/no-such": no such file`, errdefs.ErrNotFound},
		"a network that is a file":         {netns("/etc/passwd"), `network namespace "/etc/passwd": must be a namespace file`, errdefs.ErrInvalidArgument},
		"a network that is a fifo":         {netns(fifo), `must be a namespace file`, errdefs.ErrInvalidArgument},
		"a network that is an ipc":         {netns("/proc/self/ns/ipc"), `must be a network namespace, and is one of type 0x8000000`, errdefs.ErrInvalidArgument},
		"a network that is the host's":     {netns("/proc/thread-self/ns/net"), `must not be the host's`, errdefs.ErrInvalidArgument},
		"a network and the mode NODE":      {func(r *Request) { r.Config.NetNS, r.Config.Network = "/proc/1/ns/net", ModeNode }, `must not be given with the mode NODE`, errdefs.ErrInvalidArgument},
		"a server with a line of its own":  {dns(DNSConfig{Servers: []string{"fe80::1%a\nsearch x"}}), `dns_config.servers[0] "fe80::1%a\nsearch x": must be a word`, errdefs.ErrInvalidArgument},
		"33 searches":                      {dns(DNSConfig{Searches: strings.Fields(strings.Repeat("a ", 33))}), `are 33 of 65 characters, must be at most 32 of 2048`, errdefs.ErrInvalidArgument},
		"searches of 2051 characters":      {dns(DNSConfig{Searches: []string{long, long}}), `are 2 of 2051 characters`, errdefs.ErrInvalidArgument},
		"a search that is empty":           {dns(DNSConfig{Searches: []string{""}}), `dns_config.searches[0] ""`, errdefs.ErrInvalidArgument},
		"a search of two words":            {dns(DNSConfig{Searches: []string{"a b"}}), `dns_config.searches[0] "a b"`, errdefs.ErrInvalidArgument},
		"an option of two lines":           {dns(DNSConfig{Options: []string{"ndots:1", "a\nnameserver 6.6.6.6"}}), `dns_config.options[1]`, errdefs.ErrInvalidArgument},

		"a sysctl of the host":          {sysctl("kernel.panic", "1"), `sysctl "kernel.panic" = "1": must belong to a network, IPC or UTS namespace`, errdefs.ErrInvalidArgument},
		"a sysctl of users":             {sysctl("user.max_user_namespaces", "1"), `must belong to`, errdefs.ErrInvalidArgument},
		"a sysctl with slashes":         {sysctl("vm/swappiness", "1"), `must belong to`, errdefs.ErrInvalidArgument},
		"a sysctl that leads elsewhere": {sysctl("net/../kernel/panic", "1"), `must be names with dots between them`, errdefs.ErrInvalidArgument},
		"a sysctl that leads out":       {sysctl("net//..//..//..//etc//passwd", "1"), `must be names with dots between them`, errdefs.ErrInvalidArgument},
		"a sysctl without an end":       {sysctl("net.", "1"), `must be names with dots between them`, errdefs.ErrInvalidArgument},
		"a sysctl with NUL":             {sysctl("net.a\x00b", "1"), `must be names`, errdefs.ErrInvalidArgument},
		"the host name as a sysctl":     {sysctl("kernel.hostname", "a"), `is set by the host name of the pod`, errdefs.ErrInvalidArgument},
		"a value of two lines":          {sysctl("net.core.somaxconn", "1\n2"), `must not contain control characters`, errdefs.ErrInvalidArgument},
		"net sysctl, network of the host": {func(r *Request) {
			r.Config.Hostname, r.Config.Network, r.Config.Sysctls = "", ModeNode, map[string]string{"net.core.somaxconn": "1"}
		}, `must not be set in the network namespace of the host`, errdefs.ErrInvalidArgument},
		"domain name, network of the host": {func(r *Request) {
			r.Config.Hostname, r.Config.Network, r.Config.Sysctls = "", ModeNode, map[string]string{"kernel.domainname": "a"}
		}, `must not be set in the UTS namespace of the host`, errdefs.ErrInvalidArgument},
		"ipc sysctl, ipc of the host": {func(r *Request) {
			r.Config.IPC, r.Config.Sysctls = ModeNode, map[string]string{"fs.mqueue.msg_max": "1"}
		}, `must not be set in the IPC namespace of the host`, errdefs.ErrInvalidArgument},

		"a slice that is not there":          {parent("/a.slice/no-such.slice", false), `no cgroup "/no.slice/no-such.slice"`, errdefs.ErrNotFound},
		"a path for systemd":                 {parent("/kubepods", true), `cgroup_parent "/kubepods": must be a slice such as a-b.slice`, errdefs.ErrInvalidArgument},
		"a slice with an empty part":         {parent("a--b.slice", true), `cgroup_parent "a--b.slice": must be the name of a slice`, errdefs.ErrInvalidArgument},
		"a parent above the root":            {parent("../kubepods", false), `must be a path without . and ..`, errdefs.ErrInvalidArgument},
		"a parent that leads elsewhere":      {parent("/a/../b", false), `must be a path without . and ..`, errdefs.ErrInvalidArgument},
		"a size that is none":                {shm("much"), `annotation io.containerd.sandbox.v1/shm-size "much"`, errdefs.ErrInvalidArgument},
		"no size":                            {shm("0"), `at least 1`, errdefs.ErrInvalidArgument},
		"an empty size":                      {shm(""), `must be a size`, errdefs.ErrInvalidArgument},
		"a size below nothing":               {shm("-1Mi"), `must be a size`, errdefs.ErrInvalidArgument},
		"a size beyond all bounds":           {shm("9999999999Ti"), `must be a size`, errdefs.ErrInvalidArgument},
		"users without uid 0":                {user([]specs.LinuxIDMapping{{ContainerID: 1, HostID: 200000, Size: 10}}, []specs.LinuxIDMapping{{HostID: 200000, Size: 10}}), `userns_options.uids [{1 200000 10}]: must map uid 0`, errdefs.ErrInvalidArgument},
		"users without gid 0":                {user([]specs.LinuxIDMapping{{HostID: 200000, Size: 10}}, []specs.LinuxIDMapping{{ContainerID: 1, HostID: 200000, Size: 10}}), `userns_options.gids [{1 200000 10}]: must map gid 0`, errdefs.ErrInvalidArgument},
		"users without mappings":             {user(nil, nil), `must have mappings of users and of groups, has 0 and 0`, errdefs.ErrInvalidArgument},
		"users with a mapping of no user":    {user([]specs.LinuxIDMapping{{}}, mapping), `userns_options.uids[0].size 0`, errdefs.ErrInvalidArgument},
		"users with mappings that overlap":   {user(mapping, append(mapping, mapping...)), `userns_options.gids[1]`, errdefs.ErrInvalidArgument},
		"users with a mapping beyond 32 bit": {user([]specs.LinuxIDMapping{{HostID: 1, ContainerID: 1 << 31, Size: 1 << 31}, {HostID: 1 << 31, ContainerID: 2, Size: 1<<31 + 1}}, mapping), `userns_options.uids[1]`, errdefs.ErrInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/run/systemd/system"); err == nil && name == "a slice that is not there" {
				t.Skip("CANNOT RUN HERE: systemd runs here and would make it")
			}
			r := request(t, test.change)
			before := descriptors(t)
			p, err := Create(t.Context(), r, thread)
			if err == nil {
				_ = p.Close() // the test fails anyway
				t.Fatal("Create() did not fail")
			}
			if !strings.Contains(err.Error(), test.want) || !errors.Is(err, test.class) {
				t.Errorf("Create() = %v, want %q of class %v", err, test.want, test.class)
			}
			if after := descriptors(t); after > before {
				t.Errorf("descriptors before and after: %d and %d", before, after)
			}
			nothingLeft(t, r.Bundle)
		})
	}
}

// What it made before it fails goes. What was there is somebody else's.
func TestCreate_FailureLeavesWhatWasThere(t *testing.T) {
	for _, name := range []string{etcDir, shmDir} {
		t.Run(name, func(t *testing.T) {
			r := request(t)
			mine := filepath.Join(r.Bundle, name)
			testx.Must(t, os.WriteFile(mine, []byte("mine"), 0o600))
			_, err := Create(t.Context(), r, thread)
			if !errors.Is(err, os.ErrExist) || !strings.Contains(err.Error(), mine) {
				t.Errorf("Create where %s exists = %v, want that it does", name, err)
			}
			if text, err := os.ReadFile(mine); err != nil || string(text) != "mine" {
				t.Errorf("%s = %q, %v, want it as it was", name, text, err)
			}
			entries, err := os.ReadDir(r.Bundle)
			if err != nil || len(entries) != 1 {
				t.Errorf("in the bundle: %v, %v, want %s alone", entries, err, name)
			}
		})
	}
}

func TestCgroupParent_IsFound(t *testing.T) {
	name := fmt.Sprintf("pod-test-%d", os.Getpid())
	root := "/sys/fs/cgroup"
	if cgroups.Mode() != cgroups.Unified {
		root = filepath.Join(root, "pids") // one hierarchy is enough
	}
	slice := filepath.Join(root, "podtest.slice")
	for _, dir := range []string{filepath.Join(root, name), slice, filepath.Join(slice, "podtest-a.slice")} {
		testx.Must(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
	}
	for _, test := range []struct {
		parent      string
		systemd     bool
		want, scope string
	}{
		{"/" + name, false, "/" + name, "/" + name + "/p1"},
		{"/" + name + "/", false, "/" + name, "/" + name + "/p1"},
		{"podtest-a.slice", true, "/podtest.slice/podtest-a.slice", "podtest-a.slice:cri-containerd:p1"},
		{"/podtest.slice/podtest-a.slice", false, "/podtest.slice/podtest-a.slice", "podtest-a.slice:cri-containerd:p1"},
		{"/", false, "/", "/p1"},
		{"", true, "", ""},
	} {
		p := create(t, request(t, func(r *Request) { r.Config.CgroupParent, r.SystemdCgroup = test.parent, test.systemd }))
		if got := p.CgroupPath(); got != test.want {
			t.Errorf("CgroupPath() of %q = %q, want %q", test.parent, got, test.want)
		}
		if got := p.Spec().Linux.CgroupsPath; got != test.scope {
			t.Errorf("cgroupsPath of %q = %q, want %q", test.parent, got, test.scope)
		}
	}
}

func TestRemove_IsCloseForADeadShim(t *testing.T) {
	r := request(t)
	p, err := Create(t.Context(), r, thread)
	testx.Must(t, err)
	// A file in use does not keep the mount.
	file, err := os.OpenFile(filepath.Join(p.Bundle, "shm", "in use"), os.O_CREATE|os.O_RDWR, 0o600)
	testx.Must(t, err)
	defer file.Close()
	for range 2 {
		if err := Remove(r.Bundle); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, r.Bundle)
	if err := Remove("/no/such/bundle"); err != nil {
		t.Errorf("Remove of a bundle that is gone = %v", err)
	}
}
