// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	cgroupmode "github.com/containerd/cgroups/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/native"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// byLibcontainerOnly starts inits as where the launcher cannot.
var byLibcontainerOnly = sync.OnceValue(func() *Runtime {
	r := New(testReaper)
	r.launcher = func() (*native.Program, error) { return nil, errors.New("not in this test") }
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
	code, err := probe()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(c.Rootfs, "bin/probe"), code, 0o755)) //nolint:gosec // a program is executable
	for _, dir := range []string{"etc", "home/private", "data", "run"} {
		must(t, os.MkdirAll(filepath.Join(c.Rootfs, dir), 0o755))
	}
	must(t, os.MkdirAll(filepath.Join(c.Rootfs, "var"), 0o755))
	must(t, os.Symlink("/run", filepath.Join(c.Rootfs, "var/run")))
	must(t, os.WriteFile(filepath.Join(c.Rootfs, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644)) //nolint:gosec // as in any system
	must(t, os.Chmod(filepath.Join(c.Rootfs, "home/private"), 0o700))
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
		return numbers.ReplaceAllString(place.ReplaceAllString(s, "DIR"), "PATH")
	}
	streams, err := stdio.Open(context.Background(), c.IO, c.IOOwner)
	must(t, err)
	defer streams.Close()
	created, err := r.Create(t.Context(), c, streams)
	if err != nil {
		wantNothingLeft(t, c)
		seen.Err = normal(err.Error())
	} else {
		launched = created.(*container).held != nil
		var state map[string]any
		data, err := os.ReadFile(filepath.Join(c.Root, c.ID, "state.json"))
		must(t, err)
		must(t, json.Unmarshal([]byte(normal(string(data))), &state))
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
		must(t, created.Start())
		exit := created.Init().Wait()
		must(t, streams.Drain(t.Context()))
		must(t, created.Destroy())
		seen.Status = exit.Status
	}
	seen.Stdout = outputOf(t, filepath.Join(dir, "out"), normal)
	seen.Stderr = outputOf(t, filepath.Join(dir, "err"), normal)
	must(t, filepath.WalkDir(c.Rootfs, func(path string, _ os.DirEntry, err error) error {
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

// allInits is set by make test-inits. Else a part of the variants is enough.
const allInits = "SHIM_TEST_ALL_INITS"

func TestInit_IsAsLibcontainerMakesIt(t *testing.T) {
	every := 3 * slowness()
	if os.Getenv(allInits) != "" {
		every = 1
	}
	// On cgroup v2 the device rules of the first container raise this process's limit of locked memory. From then on
	// each container is given the limit from before, so only that first one would differ.
	runInit(t, testRuntime, nil)
	for b, base := range initBases {
		t.Run(base.name, func(t *testing.T) {
			for i, v := range initVariants(t) {
				if (i+b)%every != 0 {
					continue
				}
				t.Run(v.name, func(t *testing.T) {
					got := wantSameInit(t, func(c *process.Config) {
						base.change(t, c)
						v.change(c)
					}, true)
					// The kernel mounts the sysfs of a network namespace only for its owner.
					refused := base.name == "pod" && strings.HasPrefix(v.name, "user namespace")
					if (got.Status == 7) == refused {
						t.Errorf("libcontainer: status %d, error %s, want the probe's status 7: %t", got.Status, got.Err, !refused)
					}
				})
			}
		})
	}
}

func TestInit_RefusesWhatLibcontainerRefuses(t *testing.T) {
	for _, v := range refusedVariants {
		if v.name == "no such directory" { // init makes it
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			got := wantSameInit(t, func(c *process.Config) {
				for name, text := range map[string]string{"script": "#!/nope\n", "junk": "\x00\x01\x02junk"} {
					must(t, os.WriteFile(filepath.Join(c.Rootfs, "bin", name), []byte(text), 0o755)) //nolint:gosec // executable
				}
				v.change(c.Spec.Process)
			}, true)
			if got.Status == 7 {
				t.Error("libcontainer ran the probe")
			}
		})
	}
}

func TestInit_IsAloneInItsCgroups(t *testing.T) {
	config := newConfig(t, "true")
	b := create(t, config)
	for _, dir := range cgroupDirs(t, config) {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		must(t, err)
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
	must(t, os.MkdirAll(dir, 0o755))
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		must(t, os.Remove(dir))
		lacking(t, "cgroup.kill", "Linux 5.14: "+err.Error())
	}
	b := create(t, config).start()
	got := b.exec(t.Context(), command("cat", "/proc/self/cgroup"))
	if in := "::" + config.Spec.Linux.CgroupsPath + "\n"; got.err != nil || !strings.Contains(got.out, in) {
		t.Errorf("exec = %d, %q, %v, want %q in its output", got.status, got.out, got.err, in)
	}
	must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
}

// libcontainer keeps one list of devices for all containers of a process.
func TestInit_AfterAUserNamespaceHasDevicesOfRoot(t *testing.T) {
	for _, r := range []*Runtime{testRuntime, byLibcontainerOnly()} {
		first, _ := runInit(t, r, inUserNamespace)
		second, _ := runInit(t, r, nil)
		if first.Status != 7 || second.Status != 7 {
			t.Fatalf("status %d (%s) and %d (%s), want 7", first.Status, first.Err, second.Status, second.Err)
		}
		if null := "file /dev/null mode 20666 owner 0:0 "; !strings.Contains(strings.Join(second.Stdout, ""), null) {
			t.Errorf("the second container lacks %q", null)
		}
	}
}

func TestInit_AfterAUserNamespaceThatWasRefusedHasDevicesOfRoot(t *testing.T) {
	first, _ := runInit(t, testRuntime, func(c *process.Config) {
		inUserNamespace(c)
		c.Spec.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: "SCMP_ACT_NOPE"} // refused after the devices were made
	})
	if !strings.Contains(first.Err, "SCMP_ACT_NOPE") {
		t.Fatalf("error %q, want that the action is unknown", first.Err)
	}
	second, _ := runInit(t, testRuntime, nil)
	if null := "file /dev/null mode 20666 owner 0:0 "; !strings.Contains(strings.Join(second.Stdout, ""), null) {
		t.Errorf("the second container lacks %q", null)
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
	must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before))
	changed := before
	changed.Cur = lockedAtStart.Cur / 2
	earlier := withProbe(t, nil) // as the first container of a shim, whose device rules raise it
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &changed))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)) })
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

// The kernel drops a signal to the first process of a PID namespace that has no handler.
func TestInit_ThatWasCreatedEndsBySignals(t *testing.T) {
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT} {
		if signal.Ignored(sig) { // by who runs the test, nohup(1) for example, and so by init
			t.Logf("LEFT OUT: %v, which is ignored here", sig)
			continue
		}
		b := create(t, newConfig(t, "sleep", "1000"))
		must(t, b.Init().Signal(sig))
		b.wait()
		if got, want := b.exit.Status, 128+int(sig); got != want {
			t.Errorf("%v: status %d, want %d", sig, got, want)
		}
	}
}
