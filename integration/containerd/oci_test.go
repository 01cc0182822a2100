// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// sub is e for a subtest that may run beside others. The containers of the subtest end with it; leaks are looked for
// when all subtests have ended.
func (e *env) sub(t *testing.T) *env {
	t.Helper()
	t.Parallel()
	sub := *e
	sub.TB = t
	return &sub
}

// wantError checks the class of an error, which only the runtime of this project promises, and the words in it.
func wantError(t *testing.T, err, class error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("error = nil, want one with %q", words)
		return
	}
	for _, word := range words {
		if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(word)) {
			t.Errorf("error = %q, want %q in it", err, word)
		}
	}
	if class != nil && !errors.Is(err, class) && harness.Runtime() == harness.Ours {
		t.Errorf("error = %v, of class %v, want %v", err, errdefs.Resolve(err), class)
	}
}

// needKernel skips a test of what this kernel was built without. A file that every supported kernel has is never
// skipped over.
func needKernel(t *testing.T, file string) {
	t.Helper()
	if _, err := os.Stat(file); err != nil {
		t.Skipf("CANNOT RUN HERE: the kernel lacks what this test is about: %v", err)
	}
}

// spec makes an option of a change to the whole configuration.
func spec(change func(*oci.Spec)) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		change(s)
		return nil
	}
}

// with is opts as a list, for tables.
func with(opts ...oci.SpecOpts) []oci.SpecOpts { return opts }

// publicDir makes a directory that everybody may enter, outside of what the leak check looks at.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	// The directory above it is Go's, and root's alone.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		harness.Must(t, os.Chmod(d, 0o755))
	}
	return dir
}

func bind(source, destination string, options ...string) oci.SpecOpts {
	return oci.WithMounts([]specs.Mount{{
		Type: "bind", Source: source, Destination: destination,
		Options: append([]string{"rbind"}, options...),
	}})
}

// mapped is where the tests' user namespaces lie: users 0 to 65535 of the container are these of the host.
const mapped = 200000

var idMap = []specs.LinuxIDMapping{{ContainerID: 0, HostID: mapped, Size: 65536}}

// letOthersIn opens the directory of the shared containerd, which is in a directory of root's alone, to the users that
// a user namespace maps: containerd's own directories let them through.
func letOthersIn(t *testing.T) {
	t.Helper()
	harness.Must(t, os.Chmod(shared.Dir, 0o711))
}

// hookKinds are those of the OCI runtime specification, config.md, "POSIX-platform Hooks", in the order of a life.
var hookKinds = []string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

// hooks gives a container one hook of each kind that make has one for.
func hooks(make func(kind string) *specs.Hook) oci.SpecOpts {
	return spec(func(s *oci.Spec) {
		s.Hooks = &specs.Hooks{}
		for i, list := range []*[]specs.Hook{
			&s.Hooks.Prestart, //nolint:staticcheck // deprecated, and still what many a configuration has
			&s.Hooks.CreateRuntime, &s.Hooks.CreateContainer, &s.Hooks.StartContainer, &s.Hooks.Poststart,
			&s.Hooks.Poststop,
		} {
			if h := make(hookKinds[i]); h != nil {
				*list = []specs.Hook{*h}
			}
		}
	})
}

// recorder is a hook that appends to the file: its kind, the status that it gets, and whether it is in the mount
// namespace of this process.
func recorder(t *testing.T, file string) func(kind string) *specs.Hook {
	t.Helper()
	host, err := os.Readlink("/proc/self/ns/mnt")
	harness.Must(t, err)
	const script = `read -r state
where=container; [ "$(readlink /proc/self/ns/mnt)" = "$2" ] && where=host
echo "$0 $(echo "$state" | sed 's/.*"status":"\([a-z]*\)".*/\1/') $where" >>"$1"`
	return func(kind string) *specs.Hook {
		return &specs.Hook{
			Path: "/bin/sh", Args: []string{"sh", "-c", script, kind, file, host},
			Env: []string{"PATH=/bin:/usr/bin"},
		}
	}
}

func TestHooks_RunInTheirPlaceAndOrder(t *testing.T) {
	e := newEnv(t)
	dir := publicDir(t)
	file := filepath.Join(dir, "log")
	ran := func(when, want string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil || string(text) != want {
			t.Errorf("hooks after %s:\n%s(%v), want\n%s", when, text, err, want)
		}
	}
	c := e.create("c1", config{opts: with(bind(dir, dir, "rw"), hooks(recorder(t, file)))}, "sleep", "1000")
	created := "prestart creating host\ncreateRuntime creating host\ncreateContainer creating container\n"
	// Libcontainer calls poststart hooks before it starts the program, in the runc shim as well.
	created += "poststart created host\n"
	started := created + "startContainer created container\n"
	ran("Create", created)
	e.must(c.process.Start(e.ctx), "start")
	// The container calls its hook itself, when it goes on after Start.
	harness.Eventually(t, "five hooks", func() error {
		if text, err := os.ReadFile(file); err != nil || strings.Count(string(text), "\n") < 5 {
			return fmt.Errorf("%s (%w)", text, err)
		}
		return nil
	})
	ran("Start", started)
	c.kill()
	ran("Delete", started+"poststop stopped host\n")
}

// filter applies action to the making of directories and lets everything else pass.
func filter(action specs.LinuxSeccompAction, errno unix.Errno, change func(*specs.LinuxSeccomp)) oci.SpecOpts {
	return spec(func(s *oci.Spec) {
		ret := uint(errno)
		rule := specs.LinuxSyscall{Names: []string{"mkdir", "mkdirat"}, Action: action}
		if errno != 0 {
			rule.ErrnoRet = &ret
		}
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{rule}}
		if change != nil {
			change(s.Linux.Seccomp)
		}
	})
}

func TestCreate_TakesALargeConfiguration(t *testing.T) {
	e := newEnv(t)
	large := strings.Repeat("x", 2*mib)
	c := e.run("c1", config{opts: with(oci.WithAnnotations(map[string]string{"large": large}))}, "sleep", "1000")
	x := c.runExec("e1", "echo", "hello")
	if got := x.out.String(); got != "hello\n" {
		t.Errorf("stdout of the exec = %q, want hello", got)
	}
	// One that no message holds is refused, and harms nothing.
	_, err := c.tryExec("e2", config{},
		func(p *specs.Process) { p.Env = []string{fmt.Sprintf("A=%s%s%s", large, large, large)} }, "true")
	wantError(t, err, errdefs.ErrResourceExhausted)
	_, err = c.Status(e.ctx)
	e.must(err, "status after the large message")
	c.kill()
}

// effects prints what the settings of TestSpec_ReachesTheProcess do to a process.
const effects = `echo $GREETING $(pwd) $(id -u):$(id -g) $(hostname).$(cat /proc/sys/kernel/domainname)
sed -n 's/^\(Groups\|NoNewPrivs\|Seccomp\|Cap...\):\s*0*/\1 /p' /proc/self/status
echo nofile $(ulimit -Sn) $(ulimit -Hn), score $(cat /proc/self/oom_score_adj), umask $(umask)
echo nice and policy $(cut -d' ' -f19,41 /proc/self/stat), $(ionice -p $$)
`

// A setting of each kind comes through containerd to a container and its execs. TestInit_IsAsLibcontainerMakesIt and
// TestLauncher_DoesWhatLibcontainerDoes of pkg/ociruntime have all of them.
func TestSpec_ReachesTheProcess(t *testing.T) {
	needKernel(t, "/dev/fuse")
	e := newEnv(t)
	dir := publicDir(t)
	e.must(os.Mkdir(filepath.Join(dir, "inner"), 0o755), "make a directory")
	e.must(unix.Mount("tmpfs", filepath.Join(dir, "inner"), "tmpfs", 0, ""), "mount in it")
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "inner"), unix.MNT_DETACH) })

	score, one := 500, []string{"CAP_NET_BIND_SERVICE"}
	process := func(p *specs.Process) {
		p.Env, p.Cwd, p.NoNewPrivileges, p.OOMScoreAdj = append(p.Env, "GREETING=hello"), "/tmp", true, &score
		p.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{77}, Umask: new(uint32(0o27))}
		p.Capabilities = &specs.LinuxCapabilities{
			Bounding: one, Effective: one, Permitted: one, Inheritable: one, Ambient: one,
		}
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 101, Hard: 202}}
		p.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 7}
		p.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 6}
	}
	const want = `hello /tmp 1000:1000 name.domain
Groups 77 
CapInh 400
CapPrm 400
CapEff 400
CapBnd 400
CapAmb 400
NoNewPrivs 1
Seccomp 2
nofile 101 202, score 500, umask 0027
nice and policy 7 3, best-effort: prio 6
`
	opts := with(spec(func(s *oci.Spec) {
		process(s.Process)
		s.Hostname, s.Domainname = "name", "domain"
		s.Linux.Sysctl = map[string]string{"kernel.shmmni": "321"}
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace},
			specs.LinuxNamespace{Type: specs.TimeNamespace})
		s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 700000000}}
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = []string{"/etc/group", "/sys"}, []string{"/root"}
	}), filter(specs.ActErrno, unix.ENOSPC, nil), oci.WithLinuxDevice("/dev/fuse", "rm"), bind(dir, "/rro", "rro"),
		oci.WithMounts([]specs.Mount{{Type: "tmpfs", Source: "tmpfs", Destination: "/etc", Options: []string{"tmpcopyup"}}}))
	c := e.run("c1", config{opts: opts}, "sh", "-c", effects+"echo; sleep 1000")
	c.out.WaitFor(t, "\n\n")
	if got := strings.TrimSuffix(c.out.String(), "\n"); got != want {
		t.Errorf("init prints\n%swant\n%s", got, want)
	}
	x := c.startExec("e1", config{}, process, "sh", "-c", effects+"mkdir /tmp/x 2>&1 | cut -d: -f3")
	x.wantExit(0)
	if got, want := x.out.String(), want+" No space left on device\n"; got != want {
		t.Errorf("an exec prints\n%swant\n%s", got, want)
	}
	// What is the container's, seen by its root.
	var namespaces []string
	seen := "321\n/\nmoved\n0\ntmpfs\nroot\na:e5\nr\n"
	for _, name := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		of, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", c.Task.Pid(), name))
		e.must(err, "namespace of init")
		namespaces, seen = append(namespaces, name), seen+of+"\n"
	}
	y := c.startExec("e2", config{}, func(p *specs.Process) {
		p.User, p.Rlimits, p.Capabilities = specs.User{}, nil, &specs.LinuxCapabilities{}
	}, append([]string{"sh", "-c", `cat /proc/sys/kernel/shmmni; cut -d: -f3 /proc/self/cgroup | sort -u
read up rest </proc/uptime; [ ${up%.*} -gt 700000000 ] && echo moved
wc -c </etc/group; ls /sys; awk '$2 == "/etc" {print $3}' /proc/mounts; head -c 4 /etc/passwd; echo
for file in /root/x /rro/x /rro/inner/x; do touch $file 2>/dev/null && echo wrote $file; done
stat -c %t:%T /dev/fuse; (: </dev/fuse) && echo r; (: <>/dev/fuse) 2>/dev/null && echo rw
cd /proc/self/ns; for n in "$@"; do readlink $n; done`, "sh"}, namespaces...)...)
	y.exit()
	y.delete()
	if got := y.out.String(); got != seen {
		t.Errorf("root of the container sees %q, want %q; stderr %q", got, seen, y.err)
	}
	c.kill()
}

// A user namespace comes with a root file system that belongs to its users, and its terminals are its users', too.
func TestSpec_UserNamespace(t *testing.T) {
	letOthersIn(t)
	e := newEnv(t)
	c := e.run("c1", config{
		terminal: true,
		new:      []client.NewContainerOpts{client.WithUserNSRemappedSnapshot("c1-root", e.image, idMap, idMap)},
		opts:     with(oci.WithUserNamespace(idMap, idMap), oci.WithTTYSize(80, 24)),
	}, "sh", "-c", "stat -c %u $(tty) /bin/busybox; stty size; tr -s ' ' </proc/self/uid_map; touch /new; echo ready; cat")
	c.out.WaitFor(t, "ready")
	if got, want := c.out.String(), fmt.Sprintf("0\r\n0\r\n24 80\r\n 0 %d 65536\r\nready\r\n", mapped); got != want {
		t.Errorf("output = %q, want %q", got, want)
	}
	var stat unix.Stat_t
	e.must(unix.Stat(fmt.Sprintf("/proc/%d/root/new", c.Task.Pid()), &stat), "file of the container seen from outside")
	if stat.Uid != mapped {
		t.Errorf("owner of the container's file = %d, want %d", stat.Uid, mapped)
	}
	x := c.startExec("e1", config{}, func(p *specs.Process) { p.User = specs.User{UID: 1000, GID: 1000} }, "sh",
		"-c", "id -u; tr -s ' ' </proc/self/gid_map")
	x.wantExit(0)
	if got, want := x.out.String(), fmt.Sprintf("1000\n 0 %d 65536\n", mapped); got != want {
		t.Errorf("stdout of the exec = %q, want %q", got, want)
	}
	c.kill()
}

// An agent gets a descriptor for each process that has the filter. This one closes it, so that the system calls fail.
func TestSeccomp_FilterCanAskAnAgent(t *testing.T) {
	e := newEnv(t)
	path := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	e.must(err, "listen")
	t.Cleanup(func() { _ = listener.Close() })
	states := make(chan specs.ContainerProcessState, 2)
	go func() { // ends with the listener
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			text, side := make([]byte, 1<<16), make([]byte, unix.CmsgSpace(4))
			n, sideN, _, _, _ := conn.ReadMsgUnix(text, side) // nothing in an error
			_ = conn.Close()                                  // it was only read from
			messages, _ := unix.ParseSocketControlMessage(side[:sideN])
			for _, m := range messages {
				fds, _ := unix.ParseUnixRights(&m)
				for _, fd := range fds {
					_ = unix.Close(fd)
				}
			}
			var state specs.ContainerProcessState
			_ = json.Unmarshal(text[:n], &state) // the test compares it
			states <- state
		}
	}()

	opts := with(filter(specs.ActNotify, 0, func(s *specs.LinuxSeccomp) {
		s.ListenerPath, s.ListenerMetadata = path, "for the agent"
	}))
	c := e.run("c1", config{opts: opts}, "sh", "-c", "mkdir /tmp/x 2>&1; echo asked; sleep 1000")
	c.out.WaitFor(t, "asked")
	const want = "mkdir: can't create directory '/tmp/x': Function not implemented\n"
	if got := c.out.String(); got != want+"asked\n" {
		t.Errorf("stdout = %q, want the answer of the agent", got)
	}
	x := c.startExec("e1", config{}, nil, "sh", "-c", "mkdir /tmp/x 2>&1; true")
	pids := []int{int(c.Task.Pid()), int(x.Pid())}
	x.wantExit(0)
	if got := x.out.String(); got != want {
		t.Errorf("stdout of the exec = %q, want the answer of the agent", got)
	}
	c.kill()
	for _, pid := range pids {
		s := <-states
		if s.Pid != pid || s.State.Pid != pids[0] || s.State.ID != "c1" || s.Metadata != "for the agent" ||
			!slices.Equal(s.Fds, []string{specs.SeccompFdName}) || !strings.HasSuffix(s.State.Bundle, e.namespace+"/c1") {
			t.Errorf("agent was told %+v, want process %d of container c1, its bundle, and one descriptor", s, pid)
		}
	}
}

// A hook that fails, or takes too long, ends the container, whose poststop hooks run once.
func TestHooks_FailedOneIsNamedAndLeavesNothing(t *testing.T) {
	parent := newEnv(t)
	limit := 1
	for i, tt := range []struct {
		kind string
		hook specs.Hook
		word string // empty: it runs in the container after Start has let init go, and only the status tells of it
	}{
		{"createContainer", specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "echo sorry about that >&2; exit 3"}}, "sorry about that"},
		{"poststart", specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 3"}}, "exit status 3"},
		{"startContainer", specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 3"}}, ""},
		{"createRuntime", specs.Hook{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Timeout: &limit}, "timeout"},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			dir := publicDir(t)
			e := parent.sub(t)
			file := filepath.Join(dir, "log")
			failing := hooks(func(kind string) *specs.Hook {
				switch kind {
				case tt.kind:
					return &tt.hook
				case "poststop":
					return recorder(t, file)(kind)
				}
				return nil
			})
			c, err := e.tryCreate(fmt.Sprintf("h%d", i), config{opts: with(bind(dir, dir, "rw"), failing)}, "sleep", "1000")
			if err == nil {
				err = c.process.Start(e.ctx)
			}
			if tt.word != "" {
				wantError(t, err, nil, tt.kind, tt.word)
			}
			if c != nil {
				if code := c.exit(); code == 0 {
					t.Errorf("exit status = 0, want another")
				}
				c.delete()
			}
			if text, err := os.ReadFile(file); err != nil || strings.Count(string(text), "poststop") != 1 {
				t.Errorf("poststop hook wrote %q (%v), want that it ran once", text, err)
			}
		})
	}
}
