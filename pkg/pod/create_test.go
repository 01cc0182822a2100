// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/unixfile"
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

func TestShmSize_IsAtMostTheOption(t *testing.T) {
	var machine unix.Sysinfo_t
	testx.Must(t, unix.Sysinfo(&machine))
	half := machine.Totalram * uint64(machine.Unit) / 2
	for name, test := range map[string]struct {
		asked string
		max   int64
		want  string // in the error; "" for none
	}{
		"more than the machine has": {"8Ti", 0, fmt.Sprintf("from 1 to %d", half)},
		"more than the option":      {"129Mi", 128 << 20, `"129Mi": must be a size in bytes such as 67108864 or 64Mi, from 1 to 134217728`},
		"as much as the option":     {"128Mi", 128 << 20, ""},
		"more than half":            {fmt.Sprint(half + 1), 1 << 40, ""},
		"the default":               {"64Mi", 1 << 20, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, func(r *Request) {
				r.MaxShmSize, r.Config.Annotations = test.max, map[string]string{ShmSizeAnnotation: test.asked}
			})
			if test.want == "" {
				create(t, r)
				return
			}
			wantRefused(t, r, errdefs.ErrInvalidArgument, test.want)
		})
	}
}

// wantRefused wants Create to refuse r, with this text, and to leave nothing.
func wantRefused(t *testing.T, r Request, class error, text string) {
	t.Helper()
	before := descriptors(t)
	p, err := Create(t.Context(), r, thread)
	if err == nil {
		_ = p.Close() // the test fails anyway
	}
	testx.WantError(t, err, class, text)
	if after := descriptors(t); after > before {
		t.Errorf("descriptors before and after: %d and %d", before, after)
	}
	nothingLeft(t, r.Bundle)
}

// Each of these is refused by name, and leaves nothing.
func TestCreate_Refuses(t *testing.T) {
	sysctl := func(key string) func(*Request) {
		return func(r *Request) { r.Config.Sysctls = map[string]string{key: "1"} }
	}
	onNode := func(key string) func(*Request) {
		return func(r *Request) {
			r.Config = Config{Network: ModeNode, IPC: ModeNode, Sysctls: map[string]string{key: "1"}}
		}
	}
	netns := func(path string) func(*Request) { return func(r *Request) { r.Config.NetNS = path } }
	parent := func(path string) func(*Request) { return func(r *Request) { r.Config.CgroupParent = path } }
	shm := func(value string) func(*Request) {
		return func(r *Request) { r.Config.Annotations = map[string]string{ShmSizeAnnotation: value} }
	}
	user := func(uids, gids []specs.LinuxIDMapping) func(*Request) {
		return func(r *Request) { r.Config.User = &idmap.Mappings{UIDs: uids, GIDs: gids} }
	}
	se := func(o SELinuxOptions) func(*Request) { return func(r *Request) { r.Config.SELinux = &o } }
	for name, test := range map[string]struct {
		change func(*Request)
		want   string
	}{
		"a network of each container": {func(r *Request) { r.Config.Network = ModeContainer }, `network 1, pid 1, ipc 0: must be 0 (POD) or 2 (NODE)`},
		"an ipc of another container": {func(r *Request) { r.Config.IPC = 3 }, `ipc 3`},
		"a mode that there is not":    {func(r *Request) { r.Config.PID = 17 }, `pid 17`},

		"a host name, network of the host": {func(r *Request) { r.Config.Network = ModeNode }, `hostname "web-0"`},
		"a network that is not there":      {netns("/run/netns/no-such"), `network namespace: open /run/netns/no-such: no such file`},
		"a network and the mode NODE":      {func(r *Request) { r.Config.Hostname, r.Config.NetNS, r.Config.Network = "", "/x", ModeNode }, `network namespace "/x": must be empty`},

		"a sysctl of the host":             {sysctl("kernel.panic"), `sysctl "kernel.panic" = "1": must be one of a network, IPC or UTS namespace`},
		"a sysctl of users":                {sysctl("user.max_user_namespaces"), `must be one of`},
		"a sysctl with slashes":            {sysctl("vm/swappiness"), `must be one of`},
		"a sysctl that leads elsewhere":    {sysctl("net/../kernel/panic"), `must be one of`},
		"a sysctl that leads out":          {sysctl("net//..//..//..//etc//passwd"), `must be one of`},
		"a sysctl without an end":          {sysctl("net."), `must be one of`},
		"the host name as a sysctl":        {sysctl("kernel.hostname"), `must be one of`},
		"net sysctl, network of the host":  {onNode("net.core.somaxconn"), `must be one of`},
		"domain name, network of the host": {onNode("kernel.domainname"), `must be one of`},
		"ipc sysctl, ipc of the host":      {onNode("fs.mqueue.msg_max"), `must be one of`},

		"a slice with an empty part": {parent("a--b.slice"), `cgroup_parent "a--b.slice": must be the name of a slice`},
		"a size that is none":        {shm("much"), `annotation io.containerd.sandbox.v1/shm-size "much"`},
		"no size":                    {shm("0"), `from 1 to`},
		"an empty size":              {shm(""), `must be a size`},
		"a size beyond all bounds":   {shm("9999999999Ti"), `must be a size`},
		"users without uid 0":        {user([]specs.LinuxIDMapping{{ContainerID: 1, HostID: 200000, Size: 10}}, mapping), `userns_options: uids [{1 200000 10}], gids [{0 200000 65536}]: must map uid 0 and gid 0`},
		"users without mappings":     {user(nil, nil), `must map uid 0`},

		// What a pod says becomes an option of a mount, behind others.
		"a level with options": {se(SELinuxOptions{Level: `s0",size=8G,mode="7`}), `"s0\",size=8G,mode=\"7": must not contain a quotation mark`},
		"a user with options":  {se(SELinuxOptions{User: `a",size=8G`}), `"a\",size=8G": must not`},
	} {
		t.Run(name, func(t *testing.T) { wantRefused(t, request(t, test.change), errdefs.ErrInvalidArgument, test.want) })
	}
	if err := (Config{SELinux: &SELinuxOptions{User: "u", Type: "svirt_lxc_net_t", Level: "s0-s0:c0.c1023,c3"}}).checkSELinux(); err != nil {
		t.Error(err)
	}
}

func TestCgroupParent_IsFound(t *testing.T) {
	for parent, want := range map[string][2]string{
		"/pods":                          {"/pods", "/pods/p1"},
		"/pods/":                         {"/pods", "/pods/p1"},
		"../pods":                        {"/pods", "/pods/p1"},
		"podtest-a.slice":                {"/podtest.slice/podtest-a.slice", "podtest-a.slice:cri-containerd:p1"},
		"/podtest.slice/podtest-a.slice": {"/podtest.slice/podtest-a.slice", "podtest-a.slice:cri-containerd:p1"},
		"/":                              {"/", "/p1"},
		"":                               {"", ""},
	} {
		path, err := parentPath(parent)
		testx.Must(t, err)
		p := &Pod{Request: Request{ID: "p1", Config: Config{CgroupParent: parent}}, cgroupPath: path}
		if got := [2]string{path, p.cgroupsPath()}; got != want {
			t.Errorf("cgroups of %q and its process = %q, want %q", parent, got, want)
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

// The bundle is in a file system that all pods of a node share, and a container writes to the files as it likes.
func TestPodFiles_TakeNoRoomOfTheBundle(t *testing.T) {
	p := create(t, request(t))
	var bundle unix.Stat_t
	testx.Must(t, unix.Stat(p.Bundle, &bundle))
	const most = 2 << 20
	var written int64
	for _, name := range etcFiles {
		path := p.etcMount(name, "rw").Source
		var file unix.Stat_t
		if err := unix.Stat(path, &file); err != nil || file.Dev == bundle.Dev {
			t.Errorf("%s is on the file system of the bundle (%v)", path, err)
		}
		err := os.WriteFile(path, make([]byte, 2*most), 0)
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("write of 4 MiB to %s = %v, want %v", path, err, unix.ENOSPC)
		}
		testx.Must(t, unix.Stat(path, &file))
		written += file.Size
	}
	if written < etcRoom || written > most {
		t.Errorf("the files take %d bytes, want about %d", written, etcRoom)
	}

	var fs unix.Statfs_t
	dir := filepath.Join(p.Bundle, etcDir)
	testx.Must(t, unix.Statfs(dir, &fs))
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); fs.Type != unix.TMPFS_MAGIC || fs.Flags&want != want {
		t.Errorf("file system of type %#x, flags %#x, want a tmpfs with %#x", fs.Type, fs.Flags, want)
	}
	for i := range 100 {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o700); errors.Is(err, unix.ENOSPC) {
			return
		}
	}
	t.Error("a hundred more files could be made")
}

// onSELinux is label.InitLabels of a machine with SELinux, on which the categories c5 and c9 are the next.
func onSELinux(options []string) (process, mount string, err error) {
	user, level := "system_u", "s0:c5,c9"
	for _, option := range options {
		switch name, value, _ := strings.Cut(option, ":"); name {
		case "user":
			user = value
		case "level":
			level = value
		case "role", "type": // of processes alone
		default:
			return "", "", errors.New("bad label option " + option)
		}
	}
	return user + ":system_r:container_t:" + level, user + ":object_r:container_file_t:" + level, nil
}

func offSELinux([]string) (process, mount string, err error) { return "", "", nil }

func TestPodFiles_HaveTheContextOfThePod(t *testing.T) {
	for name, test := range map[string]struct {
		config Config
		on     func([]string) (string, string, error)
		want   string
	}{
		"a level":               {Config{SELinux: &SELinuxOptions{Level: "s0:c1,c2"}}, onSELinux, "system_u:object_r:container_file_t:s0:c1,c2"},
		"all parts":             {Config{SELinux: &SELinuxOptions{User: "u", Role: "r", Type: "t", Level: "s0:c1"}}, onSELinux, "u:object_r:container_file_t:s0:c1"},
		"no level":              {Config{SELinux: &SELinuxOptions{Type: "t"}}, onSELinux, "system_u:object_r:container_file_t:s0"},
		"nothing":               {Config{}, onSELinux, "system_u:object_r:container_file_t:s0"},
		"SELinux is off":        {Config{SELinux: &SELinuxOptions{Level: "s0:c1,c2"}}, offSELinux, ""},
		"the host's /dev/shm":   {Config{IPC: ModeNode}, onSELinux, "system_u:object_r:container_file_t:s0"},
		"a pod with users, off": {Config{User: &idmap.Mappings{UIDs: mapping, GIDs: mapping}}, offSELinux, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.config.mountLabel(test.on)
			if err != nil || got != test.want {
				t.Errorf("context = %q, %v, want %q", got, err, test.want)
			}
			var names []string
			for _, fs := range test.config.fileSystems(1, 2, got) {
				names = append(names, fs.name)
				_, context, labelled := strings.Cut(fs.options, ",context=")
				if labelled != (test.want != "") || labelled && context != `"`+test.want+`"` {
					t.Errorf("options of %s = %s, want the context %q at the end", fs.name, fs.options, test.want)
				}
			}
			want := []string{etcDir, shmDir}
			if test.config.IPC == ModeNode { // CRI does not label the host's either
				want = []string{etcDir}
			}
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("file systems (-want +got):\n%s", diff)
			}
		})
	}
}

// On a machine that has SELinux.
func TestPodFiles_AreLabelled(t *testing.T) {
	if !selinux.GetEnabled() {
		if slices.Contains(strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","), "selinux") {
			t.Fatal("needs SELinux, which SHIM_TEST_REQUIRE promises")
		}
		t.Skip("SKIPPED: needs SELinux (add \"selinux\" to SHIM_TEST_REQUIRE to make this a failure)")
	}
	p := create(t, request(t, func(r *Request) { r.Config.SELinux = &SELinuxOptions{Level: "s0:c1,c2"} }))
	testx.Must(t, os.WriteFile(filepath.Join(p.Bundle, "shm", "file"), nil, 0o600))
	for _, name := range []string{"etc/hostname", "etc/hosts", "etc/resolv.conf", "shm", "shm/file"} {
		got, err := selinux.FileLabel(filepath.Join(p.Bundle, name))
		if err != nil || !strings.HasSuffix(got, ":object_r:container_file_t:s0:c1,c2") {
			t.Errorf("context of %s = %q, %v", name, got, err)
		}
	}
}

// Pods of 0.1.0 made cgroups, and listed them with their parents first.
func TestRemove_TakesTheCgroupsOfAFormerRelease(t *testing.T) {
	bundle, dir := t.TempDir(), t.TempDir()
	testx.Must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	testx.Must(t, unixfile.WriteJSON(filepath.Join(bundle, "shim.cgroups.json"), []string{dir + "/a", dir + "/a/b"}))
	testx.Must(t, Remove(bundle))
	if got := testx.Files(t, dir); got != "" {
		t.Errorf("files = %q, want none", got)
	}
}
