// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	cgroupmode "github.com/containerd/cgroups/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/capability"
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/launcher"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// byLibcontainerOnly starts inits as where the launcher cannot.
var byLibcontainerOnly = sync.OnceValue(func() *Runtime {
	r := New(testReaper)
	r.launcher.launcher = func() (*launcher.Launcher, error) { return nil, errors.New("not in this test") }
	return r
})

// inContainer is all that can be seen of a container.
type inContainer struct {
	Status         int
	Stdout, Stderr []string
	Err            string
	Rootfs         []string // what is left there
	State          map[string]any
	Cgroup         []string
}

// runInit runs a container of the configuration, which is made anew each time.
func runInit(t *testing.T, r *Runtime, change func(*process.Config)) (seen inContainer, launched bool) {
	t.Helper()
	c := newConfig(t, "probe", "an argument")
	addProbe(t, &c)
	for _, dir := range []string{"etc", "home/private", "data", "run"} {
		testx.Must(t, os.MkdirAll(filepath.Join(c.Rootfs, dir), 0o755))
	}
	testx.Must(t, os.MkdirAll(filepath.Join(c.Rootfs, "var"), 0o755))
	testx.Must(t, os.Symlink("/run", filepath.Join(c.Rootfs, "var/run")))
	testx.Must(t, os.WriteFile(filepath.Join(c.Rootfs, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644)) //nolint:gosec // as in any system
	testx.Must(t, os.Chmod(filepath.Join(c.Rootfs, "home/private"), 0o700))
	dir := filepath.Dir(c.Bundle)
	c.IO.Stderr = "file://" + filepath.Join(dir, "err")
	c.Spec.Process.Env = append(c.Spec.Process.Env, "WALK=1")
	if change != nil {
		change(&c)
	}
	c.IO.Terminal = c.Spec.Process.Terminal
	// In mountinfo it may have another beginning.
	place := regexp.MustCompile(`[^ ="]*` + regexp.QuoteMeta(filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir))))
	normal := func(s string) string {
		s = strings.ReplaceAll(s, c.ID, "ID")
		if slices.ContainsFunc(c.Spec.Mounts, func(m specs.Mount) bool { return m.Source == "/dev" }) {
			s = terminals.ReplaceAllString(s, "")
		}
		return numbers.ReplaceAllString(place.ReplaceAllString(s, "DIR"), "PATH")
	}
	streams, err := stdio.Open(context.Background(), c.IO, c.IOOwner)
	testx.Must(t, err)
	defer streams.Close()
	created, err := r.Create(t.Context(), c, streams)
	if err != nil {
		wantNothingLeft(t, c)
		seen.Err = normal(err.Error())
	} else {
		launched = created.Launch().Init == inspect.ByLauncher
		var state map[string]any
		data, err := os.ReadFile(filepath.Join(c.Root, c.ID, "state.json"))
		testx.Must(t, err)
		testx.Must(t, json.Unmarshal([]byte(normal(string(data))), &state))
		for _, key := range []string{"init_process_pid", "init_process_start", "created", "namespace_paths"} {
			if _, ok := state[key]; !ok {
				t.Errorf("state.json has no %s", key)
			}
			delete(state, key)
		}
		descriptors := pipes.ReplaceAllString(fmt.Sprint(state["external_descriptors"]), "pipe")
		// libcontainer notes where init has /dev/null from: a mount that is nowhere (pkg/stdio, nullMount).
		state["external_descriptors"] = strings.ReplaceAll(descriptors, "/ ", "/dev/null ")
		config := state["config"].(map[string]any)
		delete(config["cgroups"].(map[string]any), "Path")
		seen.State = state
		seen.Cgroup = limits(created.(*container))
		testx.Must(t, created.Start())
		exit := created.Init().Wait()
		testx.Must(t, streams.Drain(t.Context()))
		testx.Must(t, created.Destroy())
		seen.Status = exit.Status
	}
	seen.Stdout = outputOf(t, filepath.Join(dir, "out"), normal)
	seen.Stderr = outputOf(t, filepath.Join(dir, "err"), normal)
	testx.Must(t, filepath.WalkDir(c.Rootfs, func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if errors.Is(err, os.ErrNotExist) { // somebody renames files meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		seen.Rootfs = append(seen.Rootfs, fmt.Sprintf("%s %o %d:%d", strings.TrimPrefix(path, c.Rootfs), st.Mode, st.Uid, st.Gid))
		return nil
	}))
	return seen, launched
}

// numbers are of processes whose namespaces are joined, and of descriptors of libcontainer's.
var numbers = regexp.MustCompile(`/proc/\d+/ns/(user|pid|net|ipc|uts)|/proc/thread-self/fd/\d+`)

// terminals are those of a devpts. The host's come and go.
var terminals = regexp.MustCompile(`(?m)^file /dev/pts/\d+ .*\n`)

var pipes = regexp.MustCompile(`pipe:\[\d+\]`)

// limits are the control files of a container that say what it may use.
func limits(c *container) (list []string) {
	for _, dir := range slices.Sorted(maps.Values(c.manager.GetPaths())) {
		for _, name := range []string{
			"pids.max", "cpu.max", "cpu.weight", "cpu.shares", "cpu.cfs_quota_us", "memory.max", "memory.limit_in_bytes",
			"cpuset.cpus", "devices.list", "cgroup.freeze", "memory.low", "hugetlb.2MB.max",
		} {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				list = append(list, name+" "+string(data))
			}
		}
	}
	slices.Sort(list)
	return list
}

func outputOf(t *testing.T, file string, normal func(string) string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.SplitAfter(normalized(normal(string(data))), "\n")
}

// normalized replaces numbers that are others each time by those of their order.
func normalized(text string) string {
	text = sortedMounts(text)
	for _, pattern := range []string{
		`(mountinfo: \S+ )(0:\d+)( )`, `((?:shared|master):)(\d+)()`, `(ns/\w+ -> \w+:\[)(\d+)(\])`,
	} {
		seen := map[string]string{}
		re := regexp.MustCompile(pattern)
		if strings.Contains(pattern, "ns/") {
			for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts", "time"} {
				link, _ := os.Readlink("/proc/self/ns/" + kind) // one that the kernel lacks
				if _, number, ok := strings.Cut(strings.TrimSuffix(link, "]"), "["); ok {
					seen[number] = "host"
				}
			}
		}
		text = re.ReplaceAllStringFunc(text, func(match string) string {
			m := re.FindStringSubmatch(match)
			if _, ok := seen[m[2]]; !ok {
				seen[m[2]] = fmt.Sprintf("#%d", len(seen))
			}
			return m[1] + seen[m[2]] + m[3]
		})
	}
	return noise.ReplaceAllString(text, "N")
}

// sortedMounts sorts the lines of mountinfo by the place of the mount, and names instead of ids the place of the parent.
func sortedMounts(text string) string {
	places := map[string]string{}
	for _, m := range mountLine.FindAllStringSubmatch(text, -1) {
		places[m[1]] = m[4]
	}
	lines := mountLine.FindAllString(text, -1)
	slices.SortStableFunc(lines, func(a, b string) int {
		return strings.Compare(mountLine.FindStringSubmatch(a)[4], mountLine.FindStringSubmatch(b)[4])
	})
	next := 0
	return mountLine.ReplaceAllStringFunc(text, func(string) string {
		m := mountLine.FindStringSubmatch(lines[next])
		next++
		return fmt.Sprintf("mountinfo: on=%s %s %s", places[m[2]], m[3], m[4]) + m[5]
	})
}

// mountLine has id, parent, device and root, place, and the rest of a line of mountinfo.
var mountLine = regexp.MustCompile(`mountinfo: (\d+) (\d+) (\S+ \S+) (\S+)(.*\n)`)

// wantSameInit compares both ways.
func wantSameInit(t *testing.T, change func(*process.Config), launches bool) inContainer {
	t.Helper()
	want, _ := runInit(t, byLibcontainerOnly(), change)
	got, launched := runInit(t, testRuntime, change)
	if got.Err == "" && launched != launches {
		t.Errorf("by the launcher: %t, want %t", launched, launches)
	}
	wantEqual(t, want, got)
	return want
}

func wantEqual(t *testing.T, want, got inContainer) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("libcontainer (-) and the launcher (+) differ:\n%s", diff)
	}
}

func TestInit_IsAsLibcontainerMakesIt(t *testing.T) {
	// On cgroup v2 the device rules of the first container raise this process's limit of locked memory. From then on
	// each container is given the limit from before, so only that first one would differ.
	runInit(t, testRuntime, nil)
	for b, base := range initBases {
		t.Run(base.name, func(t *testing.T) {
			for i, v := range initVariants(t) {
				if leftOut(i, b) {
					continue
				}
				t.Run(v.name, func(t *testing.T) {
					t.Parallel()
					got := wantSameInit(t, func(c *process.Config) {
						base.change(t, c)
						v.change(c)
					}, true)
					if got.Status != 7 {
						t.Errorf("libcontainer: status %d, error %s, want the probe's status 7", got.Status, got.Err)
					}
				})
			}
		})
	}
}

func TestInit_RefusesWhatLibcontainerRefuses(t *testing.T) {
	var cases []initCase
	for _, v := range refusedVariants {
		if v.name != "no such directory" { // init makes it
			cases = append(cases, initCase{v.name, true, changes{func(c *process.Config) { scripts(t, c) }, on(v.change)}, ""})
		}
	}
	wantSameInits(t, cases)
}

func TestInit_IsAloneInItsCgroups(t *testing.T) {
	config := newConfig(t, "true")
	b := create(t, config)
	for _, dir := range cgroupDirs(t, config) {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		testx.Must(t, err)
		if got, want := strings.Fields(string(procs)), strconv.Itoa(b.Init().Pid()); !slices.Equal(got, []string{want}) {
			t.Errorf("processes of %s = %v, want init alone, %s", dir, got, want)
		}
	}
}

// Linux 6.18 kills what is cloned into it at birth.
func TestInit_InACgroupInWhichAllWereKilled(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	root := "/sys/fs/cgroup"
	switch cgroupmode.Mode() {
	case cgroupmode.Hybrid:
		root = "/sys/fs/cgroup/unified"
	case cgroupmode.Legacy, cgroupmode.Unavailable:
		lacking(t, "cgroup2", "cgroup v2")
	case cgroupmode.Unified:
	}
	dir := filepath.Join(root, config.Spec.Linux.CgroupsPath)
	testx.Must(t, os.MkdirAll(dir, 0o755))
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		testx.Must(t, os.Remove(dir))
		lacking(t, "cgroup.kill", "Linux 5.14: "+err.Error())
	}
	b := create(t, config).start()
	got := b.exec(t.Context(), command("cat", "/proc/self/cgroup"))
	if in := "::" + config.Spec.Linux.CgroupsPath + "\n"; got.err != nil || !strings.Contains(got.out, in) {
		t.Errorf("exec = %d, %q, %v, want %q in its output", got.status, got.out, got.err, in)
	}
	testx.Must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
}

// libcontainer keeps one list of devices for all containers of a process.
func TestInit_AfterAUserNamespaceHasDevicesOfRoot(t *testing.T) {
	refused := func(c *process.Config) { // after the devices were made
		inUserNamespace(c)
		c.Spec.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: "SCMP_ACT_NOPE"}
	}
	for _, tc := range []struct {
		r      *Runtime
		first  func(*process.Config)
		status int
		err    string
	}{{testRuntime, inUserNamespace, 7, ""}, {byLibcontainerOnly(), inUserNamespace, 7, ""}, {testRuntime, refused, 0, "SCMP_ACT_NOPE"}} {
		first, _ := runInit(t, tc.r, tc.first)
		if first.Status != tc.status || !strings.Contains(first.Err, tc.err) {
			t.Fatalf("first container: status %d, error %q, want %d, %q", first.Status, first.Err, tc.status, tc.err)
		}
		second, _ := runInit(t, tc.r, nil)
		if null := "file /dev/null mode 20666 owner 0:0 "; !strings.Contains(strings.Join(second.Stdout, ""), null) {
			t.Errorf("the second container lacks %q: error %q", null, second.Err)
		}
	}
}

// lockedAtStart is the limit of locked memory of this process before any container was made.
var lockedAtStart = func() (limit unix.Rlimit) {
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		panic(err)
	}
	return limit
}()

// libcontainer changes the limit of the whole process when it loads device rules of cgroup v2.
func TestInit_HasTheShimsLimitOfLockedMemory(t *testing.T) {
	var before unix.Rlimit
	testx.Must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before))
	changed := before
	changed.Cur = lockedAtStart.Cur / 2
	earlier := withProbe(t, nil) // as the first container of a shim, whose device rules raise it
	testx.Must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &changed))
	t.Cleanup(func() { testx.Must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)) })
	line := func(l unix.Rlimit) string {
		text := func(n uint64) string {
			if n == unix.RLIM_INFINITY {
				return "unlimited"
			}
			return strconv.FormatUint(n, 10)
		}
		return "Max locked memory +" + text(l.Cur) + " +" + text(l.Max) + " "
	}
	lockedMemory := regexp.MustCompile(line(lockedAtStart))
	for _, r := range []*Runtime{testRuntime, byLibcontainerOnly()} {
		seen, _ := runInit(t, r, nil)
		if out := strings.Join(seen.Stdout, ""); !lockedMemory.MatchString(out) {
			t.Errorf("no line of the probe's output matches %s; error %s", lockedMemory, seen.Err)
		}
	}
	for _, b := range []*box{earlier, withProbe(t, nil)} {
		for _, start := range []way{byLibcontainer, byLauncher} {
			if out := strings.Join(b.outcome(start, probed(nil)).Stdout, ""); !lockedMemory.MatchString(out) {
				t.Errorf("no line of the output of an exec matches %s", lockedMemory)
			}
		}
	}
}

func mount(m ...specs.Mount) func(*process.Config) {
	return func(c *process.Config) { c.Spec.Mounts = append(c.Spec.Mounts, m...) }
}

// initBase is a container that variants begin with.
type initBase struct {
	name   string
	change func(testing.TB, *process.Config)
}

var initBases = []initBase{
	{"plain", func(testing.TB, *process.Config) {}},
	{"containerd", asContainerd},
	{"pod", func(tb testing.TB, c *process.Config) {
		tb.Helper()
		asContainerd(tb, c)
		c.Spec.Hostname = ""
		inNamespacesOfAnother(tb, c)
		c.Spec.Process.OOMScoreAdj = new(999)
		if unified() && !controlled("memory") {
			return // as where cgroup v2 is beside v1, which has the controllers
		}
		c.Spec.Linux.Resources.CPU = &specs.LinuxCPU{Shares: new(uint64(256)), Quota: new(int64(20000)), Period: new(uint64(100000))}
		c.Spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(128 << 20))}
	}},
	{"privileged", func(tb testing.TB, c *process.Config) {
		tb.Helper()
		asContainerd(tb, c)
		for i, m := range c.Spec.Mounts {
			c.Spec.Mounts[i].Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "ro" })
		}
		c.Spec.Process.NoNewPrivileges, c.Spec.Linux.MaskedPaths, c.Spec.Linux.ReadonlyPaths = false, nil, nil
		all := ownCapabilities(tb)
		c.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
		c.Spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}},
}

// controlled reports whether containers on cgroup v2 have a controller.
func controlled(controller string) bool {
	list, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers") // none where there is no such file
	return slices.Contains(strings.Fields(string(list)), controller)
}

// ownCapabilities are those that the test has: root may lack some.
func ownCapabilities(tb testing.TB) []string {
	tb.Helper()
	own, err := capability.NewPid2(0)
	testx.Must(tb, err)
	testx.Must(tb, own.Load())
	return slices.DeleteFunc(capabilities.KnownCapabilities(), func(name string) bool {
		number := slices.Index(capabilities.KnownCapabilities(), name)
		return !own.Get(capability.PERMITTED, capability.Cap(number))
	})
}

func withCgroupNamespace(c *process.Config) {
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
}

// asContainerd makes c what containerd's default is.
func asContainerd(_ testing.TB, c *process.Config) {
	if unified() {
		withCgroupNamespace(c)
	}
	c.Spec.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
	}
	c.Spec.Hostname = "box"
	capped(c.Spec.Process)
	c.Spec.Process.NoNewPrivileges = true
	c.Spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 1024}}
	c.Spec.Linux.MaskedPaths = []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi", "/nope"}
	c.Spec.Linux.ReadonlyPaths = []string{"/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	c.Spec.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
}

func initVariants(tb testing.TB) []configVariant {
	tb.Helper()
	bind := func(options ...string) func(*process.Config) {
		return func(c *process.Config) {
			source := filepath.Join(filepath.Dir(c.Bundle), "volume")
			testx.Must(tb, os.MkdirAll(filepath.Join(source, "sub"), 0o755))
			testx.Must(tb, os.WriteFile(filepath.Join(source, "file"), []byte("x"), 0o644)) //nolint:gosec // as volumes are
			mount(specs.Mount{Destination: "/data", Type: "bind", Source: source, Options: append(options, "rbind")},
				specs.Mount{Destination: "/new/dir", Type: "bind", Source: source, Options: append(options, "bind")},
				specs.Mount{Destination: "/new/file", Type: "bind", Source: source + "/file", Options: append(options, "bind")},
				specs.Mount{Destination: "/var/run/secrets/here", Type: "bind", Source: source, Options: append(options, "rbind")})(c)
		}
	}
	tmpfs := func(options ...string) func(*process.Config) {
		options = append([]string{"mode=755"}, options...)
		return mount(specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: options},
			specs.Mount{Destination: "/home/private", Type: "tmpfs", Source: "tmpfs", Options: options},
			specs.Mount{Destination: "/new", Type: "tmpfs", Source: "other", Options: options})
	}
	propagation := func(p string, options ...string) func(*process.Config) {
		return func(c *process.Config) {
			c.Spec.Linux.RootfsPropagation = p
			bind(options...)(c)
		}
	}
	list := []configVariant{
		{"bind", bind()},
		{"bind read-only", bind("ro")},
		{"bind with flags", bind("nosuid", "nodev", "noexec")},
		{"bind noatime", bind("noatime")},
		{"bind strictatime", bind("strictatime", "nodiratime")},
		{"bind relatime", bind("relatime")},
		{"bind rw", bind("rw", "exec", "dev", "suid")},
		{"bind recursively read-only", bind("rro")},
		{"bind without links", bind("nosymfollow")},
		{"bind private", bind("rprivate")},
		{"bind slave", bind("rslave")},
		{"bind shared", bind("rshared", "ro")},
		{"tmpfs", tmpfs()},
		{"tmpfs with a mode", tmpfs("mode=1755", "size=1m")},
		{"tmpfs read-only", tmpfs("ro", "nosuid", "uid=5", "gid=6")},
		{"tmpfs with inodes", tmpfs("nr_inodes=100", "noexec")},
		{"tmpfs at places with dots", func(c *process.Config) { tmpfsAt("/var/run/../z")(c); tmpfsAt("/absent/../y/.")(c) }},
		{"propagation private", propagation("private")},
		{"propagation rprivate", propagation("rprivate", "rshared")},
		{"propagation rslave", propagation("rslave", "rslave")},
		{"propagation shared", func(c *process.Config) {
			propagation("rshared", "rshared")(c)
			c.Spec.Linux.MaskedPaths = nil // of libcontainer's, all but the first are in the peer group of the first
		}},
		{"propagation unbindable", propagation("unbindable")},
		{"read-only root", func(c *process.Config) { c.Spec.Root.Readonly = true }},
		{"names", func(c *process.Config) { c.Spec.Hostname, c.Spec.Domainname = "a-host", "a.domain" }},
		{"sysctls", func(c *process.Config) {
			c.Spec.Linux.Sysctl = map[string]string{
				"net.ipv4.ip_forward": "1", "net.ipv4.ping_group_range": "0 2147483647", "kernel.shm_rmid_forced": "1", "kernel.msgmax": "9000",
			}
		}},
		{"masks", func(c *process.Config) {
			c.Spec.Linux.MaskedPaths = []string{"/proc/kcore", "/etc", "/etc/passwd", "/home/private", "/home/private/", "/data", "/nope", "/var/run"}
		}},
		{"masks below a shared root", func(c *process.Config) {
			c.Spec.Linux.RootfsPropagation = "shared"
			c.Spec.Linux.MaskedPaths = []string{"/nope", "/proc/fs", "/etc", "/data", "/home/private"}
		}},
		{"read-only paths", func(c *process.Config) {
			c.Spec.Linux.ReadonlyPaths = []string{"/proc/sys", "/etc", "/etc/passwd", "/tmp", "/nope", "/nope/nope"}
		}},
		{"devices", func(c *process.Config) {
			c.Spec.Linux.Devices = []specs.LinuxDevice{
				{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229, FileMode: new(os.FileMode(0o660)), UID: new(uint32(7)), GID: new(uint32(8))},
				{Path: "/dev/net/tun", Type: "c", Major: 10, Minor: 200},
				{Path: "/dev/block", Type: "b", Major: 7, Minor: 0},
				{Path: "/dev/pipe", Type: "p"},
				{Path: "/etc/zero", Type: "c", Major: 1, Minor: 5, FileMode: new(os.FileMode(0o1644))},
			}
		}},
		{"no /dev", func(c *process.Config) {
			c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/dev") })
		}},
		{"/dev of the host", func(c *process.Config) {
			c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/dev") })
			mount(specs.Mount{Destination: "/dev", Type: "bind", Source: "/dev", Options: []string{"rbind"}})(c)
		}},
		{"/dev read-only", func(c *process.Config) {
			for i, m := range c.Spec.Mounts {
				if m.Destination == "/dev" {
					c.Spec.Mounts[i].Options = append(m.Options, "ro")
				}
			}
		}},
		{"cgroups", cgroupsAs("nosuid")},
		{"cgroups read-only", cgroupsAs("ro")},
		{"cgroups that can be written", cgroupsAs("suid", "rw")},
		{"cgroups with recursive flags, which libcontainer ignores", cgroupsAs("ro", "rrw", "rnosuid")},
		{"cgroup namespace", func(c *process.Config) {
			without(specs.CgroupNamespace)(c)
			withCgroupNamespace(c)
			cgroupsAs("ro")(c)
		}},
		{"time namespace", timeNamespace},
		{"PIDs of the host", without(specs.PIDNamespace)},
		{"network of the host", without(specs.NetworkNamespace)},
		{"IPC of the host", without(specs.IPCNamespace)},
		{"names of the host", func(c *process.Config) { without(specs.UTSNamespace)(c); c.Spec.Hostname = "" }},
		{"OOM score", func(c *process.Config) { c.Spec.Process.OOMScoreAdj = new(321) }},
		{"umask", func(c *process.Config) { c.Spec.Process.User.Umask = new(uint32(0o077)) }},
		{"a new directory", func(c *process.Config) { c.Spec.Process.Cwd = "/var/run/a/b" }},
		{"no new keyring", func(c *process.Config) { c.NoNewKeyring = true }},
		{"limits", func(c *process.Config) {
			c.Spec.Linux.Resources = &specs.LinuxResources{
				Pids: &specs.LinuxPids{Limit: new(int64(1))}, Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))},
				CPU: &specs.LinuxCPU{Shares: new(uint64(512)), Quota: new(int64(50000)), Period: new(uint64(100000))},
			}
		}},
		{"seccomp", filtered(tb, nil)},
		{"annotations", func(c *process.Config) { c.Spec.Annotations = map[string]string{"a": "b"} }},
	}
	for _, options := range mountOptions {
		name := strings.Join(options, ",")
		list = append(list, configVariant{"bind " + name + " on a file", bindFile(tb, options)},
			configVariant{"tmpfs " + name, tmpfs(options...)},
			configVariant{"proc " + name, ofKind("proc", "/proc", options)},
			configVariant{"sysfs " + name, ofKind("sysfs", "/sys", options)})
	}
	for _, v := range variants {
		if v.change != nil {
			list = append(list, configVariant{"process: " + v.name, func(c *process.Config) { v.change(c.Spec.Process) }})
		}
	}
	return list
}

// mountOptions are those that each kind of mount is made with.
var mountOptions = [][]string{
	{"ro"},
	{"nosuid", "noexec"},
	{"nodev", "ro", "noatime"},
	{"nodiratime", "relatime"},
	{"strictatime"},
	{"private"},
	{"rslave", "ro"},
	{"rnosuid"},
	{"rro"},
}

// bindFile mounts a file on one that is there, and on one that is made.
func bindFile(tb testing.TB, options []string) func(*process.Config) {
	tb.Helper()
	return func(c *process.Config) {
		source := filepath.Join(filepath.Dir(c.Bundle), "a-file")
		testx.Must(tb, os.WriteFile(source, []byte("x"), 0o644)) //nolint:gosec // as volumes are
		for _, destination := range []string{"/etc/passwd", "/var/run/made/file"} {
			mount(specs.Mount{Destination: destination, Type: "bind", Source: source, Options: append(slices.Clone(options), "bind")})(c)
		}
	}
}

// ofKind replaces the mount at destination by a new one, whose options these are.
func ofKind(kind, destination string, options []string) func(*process.Config) {
	return func(c *process.Config) {
		c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool {
			return m.Destination == destination || kind == "sysfs" && strings.HasPrefix(m.Destination, "/sys/")
		})
		m := specs.Mount{Destination: destination, Type: kind, Source: kind, Options: options}
		c.Spec.Mounts = slices.Insert(c.Spec.Mounts, 0, m)
	}
}

// inNamespacesOfAnother has the container join the network, IPC and UTS namespaces of a process of the test.
func inNamespacesOfAnother(tb testing.TB, c *process.Config) {
	tb.Helper()
	const flags = unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	joinNamespaces(c, hold(tb, &syscall.SysProcAttr{Cloneflags: flags}), flags)
}

// joinNamespaces has the container join those namespaces of a process that have a flag.
func joinNamespaces(c *process.Config, holder int, flags uintptr) {
	for i, n := range c.Spec.Linux.Namespaces {
		if name, flag := namespaceOf(n.Type); flags&flag != 0 {
			c.Spec.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/%s", holder, name)
		}
	}
}

// hold starts a process that lives as long as the test, and returns its id.
func hold(tb testing.TB, attr *syscall.SysProcAttr) int {
	tb.Helper()
	holder := exec.Command("sleep", "1000")
	holder.SysProcAttr = attr
	resume := testReaper.Suspend()
	testx.Must(tb, holder.Start())
	testReaper.Register(holder.Process.Pid)
	resume()
	tb.Cleanup(func() {
		_ = holder.Process.Kill() // dead already is as good
		_ = holder.Wait()         // so is waited for
		testReaper.Unregister(holder.Process.Pid)
	})
	return holder.Process.Pid
}

// ownRootfs gives the root of a user namespace its root file system.
func ownRootfs(tb testing.TB, c *process.Config) {
	tb.Helper()
	inUserNamespace(c)
	testx.Must(tb, filepath.WalkDir(c.Rootfs, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 100000, 100000))
	}))
}

// inUserNamespaceOfAnother has the container join the user namespace of a process of the test.
func inUserNamespaceOfAnother(tb testing.TB, c *process.Config) {
	tb.Helper()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	holder := hold(tb, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids})
	ownRootfs(tb, c)
	c.Spec.Linux.UIDMappings, c.Spec.Linux.GIDMappings = nil, nil
	joinNamespaces(c, holder, unix.CLONE_NEWUSER)
}

// namespaceOf is the name in /proc/PID/ns, and the flag of clone(2), of a namespace that has either.
func namespaceOf(kind specs.LinuxNamespaceType) (name string, flag uintptr) {
	switch kind {
	case specs.PIDNamespace:
		return "pid", unix.CLONE_NEWPID
	case specs.NetworkNamespace:
		return "net", unix.CLONE_NEWNET
	case specs.IPCNamespace:
		return "ipc", unix.CLONE_NEWIPC
	case specs.UTSNamespace:
		return "uts", unix.CLONE_NEWUTS
	case specs.UserNamespace:
		return "user", unix.CLONE_NEWUSER
	case specs.MountNamespace, specs.CgroupNamespace, specs.TimeNamespace:
	}
	return "", 0
}

// timeNamespace gives the container a time namespace without offsets, as Docker does.
func timeNamespace(c *process.Config) {
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
}

// How many mixtures of variants are run, and by which seed; make test-inits sets them.
const (
	mixturesEnv    = "SHIM_TEST_INIT_MIXTURES"
	mixtureSeedEnv = "SHIM_TEST_INIT_SEED"
)

// A mixture is a base with two to six variants at once. Whatever comes of it, both ways have to come to the same.
func TestInit_MixturesAreAsLibcontainerMakesThem(t *testing.T) {
	count, seed := numberOf(t, mixturesEnv, 12), numberOf(t, mixtureSeedEnv, 1)
	launched, ran := 0, 0
	for i := range max(int(count)/slowness(), 1) {
		t.Run(fmt.Sprintf("%s=%d/%d", mixtureSeedEnv, seed, i), func(t *testing.T) {
			mix := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // to be repeated
			base, all := initBases[mix.IntN(len(initBases))], initVariants(t)
			mixture := initCase{name: base.name, changes: changes{func(c *process.Config) { base.change(t, c) }}}
			for _, k := range mix.Perm(len(all))[:2+mix.IntN(5)] {
				if all[k].name != "no /dev" { // libcontainer fails where links to descriptors are in the root file system already
					mixture.name, mixture.changes = mixture.name+" + "+all[k].name, append(mixture.changes, all[k].change)
				}
			}
			t.Log(mixture.name)
			want, _ := runInit(t, byLibcontainerOnly(), mixture.change)
			got, byLauncher := runInit(t, testRuntime, mixture.change)
			wantEqual(t, want, got)
			if got.Err == "" {
				ran++
			}
			if byLauncher {
				launched++
			}
		})
	}
	if launched*2 < ran {
		t.Errorf("%d of %d by the launcher, want at least half", launched, ran)
	}
}

// numberOf is the value of an environment variable.
func numberOf(t *testing.T, name string, byDefault uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return byDefault
	}
	n, err := strconv.ParseUint(text, 10, 64)
	testx.Must(t, err)
	return n
}

// whileBusy calls f while another goroutine calls busy all the time.
func whileBusy(busy, f func()) {
	var stop atomic.Bool
	var work sync.WaitGroup
	work.Go(func() { // ends with stop
		for !stop.Load() {
			busy()
		}
	})
	defer work.Wait()
	defer stop.Store(true)
	f()
}

// openat2(2) gives up on ".." while there is a rename anywhere on the machine.
func TestInit_WhileSomebodyRenamesFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	testx.Write(t, a, "")
	whileBusy(func() {
		if err := os.Rename(a, b); err != nil {
			t.Error(err)
		}
		a, b = b, a
	}, func() {
		for range 10 {
			seen, launched := runInit(t, testRuntime, func(c *process.Config) {
				run := filepath.Join(c.Rootfs, "var/run")
				testx.Must(t, os.Remove(run))
				testx.Must(t, os.Symlink("../run", run)) // as in Alpine's image
				for _, destination := range []string{"/var/run/secrets/one", "/var/run/secrets/two", "/var/run/three"} {
					tmpfsAt(destination)(c)
				}
			})
			if !launched || seen.Status != 7 {
				t.Errorf("by the launcher: %t, status %d, error %q, want the probe's status 7 by the launcher",
					launched, seen.Status, seen.Err)
			}
		}
	})
}

func device(path string) func(*process.Config) {
	return func(c *process.Config) {
		c.Spec.Linux.Devices = append(c.Spec.Linux.Devices, specs.LinuxDevice{Path: path, Type: "c", Major: 1, Minor: 5})
	}
}

func tmpfsAt(destination string, options ...string) func(*process.Config) {
	return mount(specs.Mount{Destination: destination, Type: "tmpfs", Source: "tmpfs", Options: append([]string{"mode=755"}, options...)})
}

// libcontainer makes the target of a link, if it is absent.
func TestInit_WithALinkToNothing(t *testing.T) {
	wantSameInits(t, []initCase{
		{"a file to mount on", false, changes{linked(t, "../run/systemd/resolve/stub-resolv.conf", "etc/resolv.conf"), func(c *process.Config) {
			source := filepath.Join(filepath.Dir(c.Bundle), "a-file")
			testx.Write(t, source, "x")
			mount(specs.Mount{Destination: "/etc/resolv.conf", Type: "bind", Source: source, Options: []string{"bind", "ro"}})(c)
		}}, "made /run/systemd/resolve/stub-resolv.conf"},
		{"a directory on the way", false, changes{linked(t, "/gone/dir", "etc/link"), tmpfsAt("/etc/link/sub")}, "made /gone/dir/sub"},
		{"a device", false, changes{linked(t, "/data/target", "etc/zero"), device("/etc/zero")}, "made /data/target"},
		{"a device that is there", true, changes{linked(t, "/data/target", "etc/zero"), device("/etc/zero"), func(c *process.Config) {
			testx.Write(t, filepath.Join(c.Rootfs, "data/target"), "")
		}}, "made /data/target"},
	})
}

func TestInit_WithADestinationInProcOrOnTheHost(t *testing.T) {
	wantSameInits(t, []initCase{
		{"procfs in /proc", false, changes{mount(specs.Mount{Destination: "/proc/sys", Type: "proc", Source: "proc"})}, "refused inside /proc"},
		{"path of the root file system", false, changes{func(c *process.Config) { tmpfsAt(filepath.Join(c.Rootfs, "new"))(c) }}, "made /new"},
		{"root file system", false, changes{func(c *process.Config) { tmpfsAt(c.Rootfs)(c) }}, "refused on the top of rootfs"},
	})
}

// libcontainer tries again what the launcher could not do, in the root that the launcher has used.
func TestInit_RefusesAsIfTriedOnce(t *testing.T) {
	withoutDev := func(c *process.Config) {
		asContainerd(t, c)
		c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/dev") })
		testx.Must(t, os.MkdirAll(filepath.Join(c.Rootfs, "dev"), 0o755))
	}
	wantSameInits(t, []initCase{
		{"an invalid /dev/null", false, changes{withoutDev, func(c *process.Config) { testx.Write(t, filepath.Join(c.Rootfs, "dev/null"), "") }}, "refused"},
		{"no program, in the /dev of the image", false, changes{withoutDev, on(func(p *specs.Process) { p.Args = []string{"nope"} })}, "refused"},
		{"a wrong option", false, changes{tmpfsAt("/x/y", "foo=bar")}, "refused"},
	})
}

func masked(paths ...string) func(*process.Config) {
	return func(c *process.Config) { c.Spec.Linux.MaskedPaths = paths }
}

func readonly(paths ...string) func(*process.Config) {
	return func(c *process.Config) { c.Spec.Linux.ReadonlyPaths = paths }
}

// linked makes a link in the root file system.
func linked(t *testing.T, target, name string) func(*process.Config) {
	t.Helper()
	return func(c *process.Config) { testx.Must(t, os.Symlink(target, filepath.Join(c.Rootfs, name))) }
}

// volume binds a directory that has the directory sub.
func volume(t *testing.T, destination string, options ...string) func(*process.Config) {
	t.Helper()
	return func(c *process.Config) {
		source := filepath.Join(filepath.Dir(c.Bundle), "volume")
		testx.Must(t, os.MkdirAll(filepath.Join(source, "sub"), 0o755))
		mount(specs.Mount{Destination: destination, Type: "bind", Source: source, Options: append(options, "rbind")})(c)
	}
}

// inPIDNamespaceOfAnother has the container join the PID namespace of a process of the test.
func inPIDNamespaceOfAnother(tb testing.TB) func(*process.Config) {
	tb.Helper()
	return func(c *process.Config) {
		joinNamespaces(c, hold(tb, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}), unix.CLONE_NEWPID)
	}
}

// initCase is a container that the launcher starts, or does not, with all of some changes.
type initCase struct {
	name     string
	launches bool
	changes  changes
	want     string // "made PATH" in the root file system, "refused WORDS", "ran"; empty for whatever libcontainer does
}

type changes = []func(*process.Config)

func (tc initCase) change(c *process.Config) {
	for _, change := range tc.changes {
		change(c)
	}
}

// wantSameInits compares both ways for each case.
func wantSameInits(t *testing.T, cases []initCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := wantSameInit(t, tc.change, tc.launches)
			verb, arg, _ := strings.Cut(tc.want, " ")
			ok := true
			switch verb {
			case "ran":
				ok = got.Status == 7
			case "made":
				ok = got.Err == "" && slices.ContainsFunc(got.Rootfs, func(line string) bool { return strings.HasPrefix(line, arg+" ") })
			case "refused":
				ok = got.Err != "" && strings.Contains(got.Err, arg)
			}
			if !ok {
				t.Errorf("libcontainer: status %d, error %q, root file system %q, want %s", got.Status, got.Err, got.Rootfs, tc.want)
			}
		})
	}
}

func TestInit_WithReadOnlyAndMaskedPaths(t *testing.T) {
	sysfs := mount(specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"})
	wantSameInits(t, []initCase{
		{"of init itself", true, changes{masked("/proc/self/environ", "/proc/thread-self/children"), readonly("/proc/self/attr", "/proc/mounts")}, ""},
		{"of init itself, a terminal", true, changes{masked("/proc/self/environ"), on(onTerminal)}, ""},
		{"masked procfs", true, changes{masked("/proc", "/proc/kcore", "/etc")}, ""},
		{"read-only procfs", true, changes{readonly("/proc/sys", "/proc", "/proc/irq")}, ""},
		{"sysfs", true, changes{sysfs, readonly("/sys"), masked("/sys/firmware")}, ""},
		{"/dev", true, changes{readonly("/dev", "/dev/null"), masked("/dev/zero", "/dev/null", "/etc")}, ""},
		{"relative and twice", true, changes{masked("home", "/home", "./home/"), readonly("etc", "../data", "/etc", "/etc/")}, ""},
		{"through links", true, changes{linked(t, "../data", "etc/d"), linked(t, "nope", "etc/n"), readonly("/etc/d", "/etc/n"), masked("/var/run", "/etc/n")}, ""},
		{"in a volume", true, changes{volume(t, "/data", "rshared", "nosuid"), readonly("/data", "/data/sub"), masked("/data/sub")}, ""},
		{"in a volume, recursive", true, changes{volume(t, "/data", "rro"), readonly("/data/sub")}, ""},
		{"that cannot be copied", false, changes{volume(t, "/data", "runbindable"), readonly("/data/sub")}, ""},
		{"below a file", false, changes{masked("/etc/passwd/x")}, ""},
		{"with a zero byte, masked", false, changes{masked("/etc\x00x")}, ""},
		{"with a zero byte, read-only", false, changes{readonly("/etc\x00x")}, ""},
	})
}

// upperRoot is the mount on "/" in which a process is that enters the mount namespace later.
var upperRoot = regexp.MustCompile(`(mountinfo: on=/ \S+ \S+ / r)w,`)

func TestInit_WithAReadOnlyPathThatIsTheRoot(t *testing.T) {
	for _, tc := range []initCase{
		{"alone", true, changes{readonly("/")}, ""},
		{"before others", true, changes{readonly("/", "/etc", "/data")}, ""},
		{"after others", true, changes{readonly("/etc", "/")}, ""},
		{"relative", true, changes{readonly(".")}, ""},
		{"by a link", true, changes{linked(t, "/", "etc/top"), readonly("/etc/top")}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			want, _ := runInit(t, byLibcontainerOnly(), tc.change)
			got, launched := runInit(t, testRuntime, tc.change)
			if !launched {
				t.Error("not by the launcher")
			}
			for i, line := range want.Stdout { // libcontainer makes only the lower one read-only
				want.Stdout[i] = upperRoot.ReplaceAllString(line, "${1}o,")
			}
			wantEqual(t, want, got)
			const refused = `open("/file", O_WRONLY | O_CREAT, 0600): error 30` + "\n"
			if !slices.Contains(got.Stdout, refused) {
				t.Errorf("the probe's output lacks %q", refused)
			}
		})
	}
	c := newConfig(t, "sleep", "1000")
	readonly("/")(&c)
	if got := create(t, c).start().exec(t.Context(), command("sh", "-c", "true >/file")); got.err != nil || got.status == 0 {
		t.Errorf("exec that writes = %d, %v, want it to fail", got.status, got.err)
	}
}

// A tmpfs and /dev become read-only at the end, by their path.
func TestInit_WithAReadOnlyMountThatAnotherCovers(t *testing.T) {
	dev := func(options ...string) func(*process.Config) {
		return mount(specs.Mount{Destination: "/dev", Type: "bind", Source: "/dev", Options: append(options, "rbind")})
	}
	wantSameInits(t, []initCase{
		{"volume", true, changes{tmpfsAt("/data", "ro"), volume(t, "/data")}, ""},
		{"volume with other flags", true, changes{tmpfsAt("/data", "ro", "noexec", "noatime"), volume(t, "/data", "nosuid")}, ""},
		{"tmpfs", true, changes{tmpfsAt("/data", "ro"), tmpfsAt("/data")}, ""},
		{"tmpfs that is read-only", true, changes{tmpfsAt("/data"), tmpfsAt("/data", "ro")}, ""},
		{"by a link", true, changes{tmpfsAt("/run", "ro"), volume(t, "/var/run")}, ""},
		{"below it", true, changes{tmpfsAt("/data", "ro", "rshared"), volume(t, "/data/child", "rslave")}, ""},
		{"above it", false, changes{tmpfsAt("/data/sub", "ro"), volume(t, "/data")}, ""},
		{"above it, without its directory", false, changes{tmpfsAt("/data/x", "ro"), volume(t, "/data")}, ""},
		{"/dev", true, changes{tmpfsAt("/dev", "ro"), tmpfsAt("/dev", "mode=755")}, ""},
		{"/dev of the host", true, changes{dev("ro"), tmpfsAt("/dev", "mode=755")}, ""},
		{"nothing, recursive flags of /dev", true, changes{dev("ro", "rrw"), tmpfsAt("/dev/pts")}, ""}, // the host's terminals come and go
		{"nothing, a path with dots", false, changes{tmpfsAt("/absent/../y", "ro")}, ""},
		{"nothing, a relative path", true, changes{tmpfsAt("run", "ro")}, ""},
	})
}

// What the launcher leaves to libcontainer. The reason is in the log, and nothing is left of the attempt.
func TestInit_FallsBackToLibcontainer(t *testing.T) {
	users := func(c *process.Config) { ownRootfs(t, c) }
	wantSameInits(t, []initCase{
		{"user namespace", false, changes{users}, "ran"},
		{"user namespace, mapped volumes", false, changes{users, volume(t, "/data", "idmap")}, "ran"},
		{"user namespace of another", false, changes{func(c *process.Config) { inUserNamespaceOfAnother(t, c) }}, "ran"},
		{"PID namespace of another", false, changes{inPIDNamespaceOfAnother(t), masked("/proc/self/environ")}, "ran"},
		{"tmpfs with the mode of its directory", false, changes{mount(specs.Mount{Destination: "/home/private", Type: "tmpfs", Source: "tmpfs"})}, "ran"},
		{"scheduler", false, changes{on(func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 19} })}, "ran"},
	})
}

// cgroupsAs mounts cgroups with these options.
func cgroupsAs(options ...string) func(*process.Config) {
	return func(c *process.Config) {
		tmpfsAt("/sys")(c)
		mount(specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: options})(c)
	}
}
