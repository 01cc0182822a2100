// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// probe is testdata/probe.c.
var probe = sync.OnceValues(func() ([]byte, error) { return compiled("probe.c") })

// compiled is a file of testdata as a program that needs no library.
func compiled(name string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "probe")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a few files of the system's temporary directory
	file := filepath.Join(dir, "program")
	cmd := exec.Command("gcc", "-static", "-O1", "-o", file, filepath.Join("testdata", name))
	var words bytes.Buffer
	cmd.Stderr = &words
	defer testReaper.Suspend()() // gcc is a child that only we wait for
	if err := cmd.Run(); err != nil {
		return nil, errors.Join(err, errors.New(words.String()))
	}
	return os.ReadFile(file)
}

// outcome is all that can be seen of an exec.
type outcome struct {
	Status         int
	Stdout, Stderr []string // lines
	Err            string
}

// way is one of the two ways to start an exec.
type way func(*container, context.Context, *specs.Process, *stdio.Streams) (process.Handle, error)

//nolint:revive // a method in all but form
func byLibcontainer(c *container, ctx context.Context, p *specs.Process, s *stdio.Streams) (process.Handle, error) {
	lp, err := translate.Process(p, s)
	if err != nil {
		return nil, err
	}
	h, err := c.execByLibcontainer(ctx, lp, s)
	if err != nil {
		return nil, err
	}
	return h, nil
}

//nolint:revive // as above
func byLauncher(c *container, ctx context.Context, p *specs.Process, s *stdio.Streams) (process.Handle, error) {
	lp, err := translate.Process(p, s)
	if err != nil {
		return nil, err
	}
	h, err := c.execByLauncher(ctx, lp, s, nil)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (b *box) outcome(start way, p *specs.Process) (o outcome) {
	b.t.Helper()
	dir := b.t.TempDir()
	file := func(name string) string { return "file://" + filepath.Join(dir, name) }
	io := stdio.Config{Stdout: file("out"), Stderr: file("err"), Terminal: p.Terminal}
	streams, err := stdio.Open(b.t.Context(), io, idmap.Owner{})
	must(b.t, err)
	defer streams.Close()
	h, err := start(b.RuntimeContainer.(*container), b.t.Context(), p, streams)
	if err != nil {
		if reason := (unsupported{}); errors.As(err, &reason) {
			b.t.Fatalf("the launcher does not cover it: %v", err)
		}
		return outcome{Err: strings.ReplaceAll(err.Error(), "fsmount:fscontext:proc/", "/proc/")} // a /proc of libcontainer's
	}
	o.Status = h.Wait().Status
	must(b.t, streams.Drain(b.t.Context()))
	for name, text := range map[string]*[]string{"out": &o.Stdout, "err": &o.Stderr} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			b.t.Fatal(err)
		}
		shown := unnamedNull.ReplaceAllString(noise.ReplaceAllString(string(data), "N"), "$1/dev/null\n")
		*text = strings.SplitAfter(bothWaysNull.ReplaceAllString(shown, "${1}0 "), "\n")
	}
	return o
}

// wantSame compares both ways.
func (b *box) wantSame(p *specs.Process) outcome {
	b.t.Helper()
	want, got := b.outcome(byLibcontainer, p), b.outcome(byLauncher, p)
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Errorf("libcontainer (-) and the launcher (+) differ:\n%s", diff)
	}
	return want
}

// noise is the number of a terminal, which is another one each time.
var noise = regexp.MustCompile(`/dev/pts/\d+`)

// unnamedNull is the stdin that libcontainer leaves an exec, from a mount that is nowhere (pkg/stdio, nullMount). The
// launcher gives it the container's /dev/null, which is open for writing too.
var unnamedNull = regexp.MustCompile(`(?m)(/fd/0 -> )/\n`)

// bothWaysNull shows that.
var bothWaysNull = regexp.MustCompile(`(mode 20666 flags \d+)2 `)

// withProbe is a container to be probed.
func withProbe(tb testing.TB, change func(*process.Config)) *box {
	tb.Helper()
	c := newConfig(tb, "sleep", "1000")
	code, err := probe()
	must(tb, err)
	must(tb, os.WriteFile(filepath.Join(c.Rootfs, "bin/probe"), code, 0o755)) //nolint:gosec // a program is executable
	for _, dir := range []string{"etc", "home/private"} {
		must(tb, os.MkdirAll(filepath.Join(c.Rootfs, dir), 0o755))
	}
	must(tb, os.Chmod(filepath.Join(c.Rootfs, "home/private"), 0o700))
	must(tb, os.WriteFile(filepath.Join(c.Rootfs, "forbidden"), nil, 0o644)) //nolint:gosec // some module may forbid it
	passwd := "root:x:0:0:root:/root:/bin/sh\n\n  # comment\nuser:x:1000:1000::/home/user:/bin/sh\r\n" +
		"odd:x:1001\nempty:x:1002:1002:::\nlast:x:1003:1003::/last"
	must(tb, os.WriteFile(filepath.Join(c.Rootfs, "etc/passwd"), []byte(passwd), 0o644)) //nolint:gosec // as in any system
	if change != nil {
		change(&c)
	}
	return create(tb, c).start()
}

// variant is one change of a process.
type variant struct {
	name   string
	change func(*specs.Process)
}

func probed(change func(*specs.Process)) *specs.Process {
	p := command("probe", "an argument", "")
	if change != nil {
		change(p)
	}
	return p
}

var few = []string{"CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_NET_BIND_SERVICE"}

func user(uid uint32) func(*specs.Process) {
	return func(p *specs.Process) { p.User = specs.User{UID: uid, GID: uid} }
}

func capped(p *specs.Process) {
	p.Capabilities = &specs.LinuxCapabilities{Bounding: few, Effective: few, Permitted: few}
}

var variants = []variant{
	{"nothing asked for", nil},
	{"a user with groups", func(p *specs.Process) {
		p.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{5, 6, 1001}}
	}},
	{"a user that passwd cuts short", user(1001)},
	{"a user without a home", user(1002)},
	{"the last user", user(1003)},
	{"a user that passwd lacks", user(1004)},
	{"capabilities", capped},
	{"no capabilities", func(p *specs.Process) { p.Capabilities = &specs.LinuxCapabilities{} }},
	{"capabilities of a user", func(p *specs.Process) { capped(p); user(1000)(p) }},
	{"ambient capabilities", func(p *specs.Process) {
		capped(p)
		p.Capabilities.Inheritable, p.Capabilities.Ambient = few, append([]string{"CAP_SYS_ADMIN", "CAP_UNKNOWN"}, few[:2]...)
		user(1000)(p)
	}},
	{"inheritable without permitted", func(p *specs.Process) {
		p.Capabilities = &specs.LinuxCapabilities{Bounding: few, Inheritable: few}
	}},
	{"no new privileges", func(p *specs.Process) { p.NoNewPrivileges = true }},
	{"no new privileges of a user", func(p *specs.Process) { p.NoNewPrivileges = true; capped(p); user(1000)(p) }},
	{"limits", func(p *specs.Process) {
		p.Rlimits = []specs.POSIXRlimit{
			{Type: "RLIMIT_NOFILE", Soft: 64, Hard: 1024},
			{Type: "RLIMIT_STACK", Soft: 1 << 20, Hard: 1 << 21},
			{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
			{Type: "RLIMIT_NPROC", Soft: 100, Hard: 200},
		}
	}},
	{"a small stack", func(p *specs.Process) {
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_STACK", Soft: 64 << 10, Hard: 64 << 10}}
	}},
	{"a terminal", func(p *specs.Process) { p.Terminal = true }},
	{"a terminal with a size", func(p *specs.Process) {
		p.Terminal, p.ConsoleSize = true, &specs.Box{Width: 91, Height: 17}
		user(1000)(p)
		capped(p)
	}},
	{"a directory", func(p *specs.Process) { p.Cwd = "/tmp" }},
	{"a directory of root's", func(p *specs.Process) { p.Cwd = "/home/private"; user(1000)(p); capped(p) }},
	{"an environment", func(p *specs.Process) {
		p.Env = []string{"A=1", "PATH=/x", "A=2", "HOME=/h", "PATH=/usr/bin:/bin", "B="}
	}},
	{"an empty home", func(p *specs.Process) { p.Env = append(p.Env, "HOME=") }},
	{"a path", func(p *specs.Process) { p.Args[0] = "/bin/probe" }},
	{"a PATH that is not clean", func(p *specs.Process) {
		p.Env = []string{"PATH=/x/../etc/./:/:" + strings.Repeat("/x", 2100) + ":" + strings.Repeat("/y:", 100) + "//home//..//bin/"}
	}},
	{"a relative path", func(p *specs.Process) { p.Args[0], p.Cwd = "./probe", "/bin" }},
	{"CPUs", func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0-1", Final: "1"} }},
	{"first CPUs", func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0"} }},
	{"a scheduler", func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 19} }},
	{"an I/O priority", func(p *specs.Process) {
		p.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 3}
	}},
}

var refusedVariants = []variant{
	{"no such program", func(p *specs.Process) { p.Args = []string{"nope"} }},
	{"no such path", func(p *specs.Process) { p.Args = []string{"/bin/nope"} }},
	{"no PATH", func(p *specs.Process) { p.Env = nil }},
	{"a long name", func(p *specs.Process) { p.Args = []string{strings.Repeat("n", 256)} }},
	{"a name that is too long", func(p *specs.Process) { p.Args = []string{strings.Repeat("n", 5000)} }},
	{"a path that is too long", func(p *specs.Process) { p.Args = []string{"/bin/" + strings.Repeat("./", 2048) + "probe"} }},
	{"a script of PATH", func(p *specs.Process) { p.Args, p.Env = []string{"script"}, []string{"PATH=/x:/bin/"} }},
	{"a script in the root", func(p *specs.Process) { p.Args, p.Env = []string{"script"}, []string{"PATH=/x://"} }},
	{"PATH below the working directory", func(p *specs.Process) { p.Cwd, p.Env = "/bin", []string{"PATH=:/x"} }},
	{"the empty program", func(p *specs.Process) { p.Args = []string{""} }},
	{"the program ..", func(p *specs.Process) { p.Args = []string{".."} }},
	{"not executable", func(p *specs.Process) { p.Args = []string{"/etc/passwd"} }},
	{"a directory", func(p *specs.Process) { p.Args = []string{"/bin"} }},
	{"below a file", func(p *specs.Process) { p.Args = []string{"/etc/passwd/x"} }},
	{"a script with no interpreter", func(p *specs.Process) { p.Args = []string{"/bin/script"} }},
	{"a file of no format", func(p *specs.Process) { p.Args = []string{"/bin/junk"} }},
	{"no such directory", func(p *specs.Process) { p.Cwd = "/nope" }},
	{"a directory that is a file", func(p *specs.Process) { p.Cwd = "/etc/passwd" }},
	{"a variable without a value", func(p *specs.Process) { p.Env = append(p.Env, "X") }},
	{"a variable without a name", func(p *specs.Process) { p.Env = append(p.Env, "=x") }},
	{"a limit that cannot be", func(p *specs.Process) {
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1 << 40, Hard: 1 << 41}}
	}},
	{"a scheduler that cannot be", func(p *specs.Process) {
		p.Scheduler = &specs.Scheduler{Policy: specs.SchedFIFO, Priority: 100}
	}},
}

func inUserNamespace(c *process.Config) {
	c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	maps := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	c.Spec.Linux.UIDMappings, c.Spec.Linux.GIDMappings = maps, maps
	for i, m := range c.Spec.Mounts {
		if m.Destination == "/dev" && m.Type == "tmpfs" {
			c.Spec.Mounts[i].Options = append(m.Options, "uid=0")
		}
	}
	for dir := c.Rootfs; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		_ = os.Chmod(dir, 0o755) //nolint:gosec // the user of the namespace has to come through
	}
	_ = os.Chown(filepath.Join(c.Rootfs, "home/private"), 100000, 100000) // seen where it is entered
}

func without(kind specs.LinuxNamespaceType) func(*process.Config) {
	return func(c *process.Config) {
		c.Spec.Linux.Namespaces = slices.DeleteFunc(c.Spec.Linux.Namespaces,
			func(n specs.LinuxNamespace) bool { return n.Type == kind })
	}
}

// configVariant is a container that differs from the ordinary one.
type configVariant struct {
	name   string
	change func(*process.Config)
}

func configVariants(tb testing.TB) []configVariant {
	tb.Helper()
	return []configVariant{
		{"plain", nil},
		{"settings of the container", func(c *process.Config) {
			c.Spec.Root.Readonly = true
			c.Spec.Linux.MaskedPaths, c.Spec.Linux.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/sys"}
			p := c.Spec.Process
			p.OOMScoreAdj, p.User.Umask = new(321), new(uint32(0o027))
			p.NoNewPrivileges = true
			p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 99, Hard: 999}}
			capped(p)
		}},
		{"no new keyring", func(c *process.Config) { c.NoNewKeyring = true }},
		{"cgroup and time namespaces", func(c *process.Config) {
			c.Spec.Linux.Namespaces = append(c.Spec.Linux.Namespaces,
				specs.LinuxNamespace{Type: specs.CgroupNamespace}, specs.LinuxNamespace{Type: specs.TimeNamespace})
			c.Spec.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 1000}}
		}},
		{"user namespace", inUserNamespace},
		{"PIDs of the host", without(specs.PIDNamespace)},
		{"network of the host", without(specs.NetworkNamespace)},
		{"IPC of the host", without(specs.IPCNamespace)},
		{"seccomp", filtered(tb, nil)},
		{"seccomp with flags", filtered(tb, func(s *specs.LinuxSeccomp) {
			s.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow}
		})},
		{"seccomp that allows by default", filtered(tb, func(s *specs.LinuxSeccomp) {
			s.DefaultAction, s.DefaultErrnoRet = specs.ActAllow, nil
			s.Syscalls = []specs.LinuxSyscall{
				{Names: []string{"unshare", "kcmp"}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.EDOM))},
			}
		})},
		{"seccomp of old calls", filtered(tb, deny("open", "faccessat2"))},
		{"seccomp and a user namespace", func(c *process.Config) { inUserNamespace(c); filtered(tb, nil)(c) }},
	}
}

func TestLauncher_DoesWhatLibcontainerDoes(t *testing.T) {
	for i, w := range configVariants(t) {
		t.Run(w.name, func(t *testing.T) {
			b := withProbe(t, w.change)
			for j, v := range variants {
				if (i+j)%slowness() != 0 {
					continue // each in some of the configVariants is enough where an exec takes a second
				}
				t.Run(v.name, func(t *testing.T) {
					on := *b
					on.t = t
					if got := on.wantSame(probed(v.change)); got.Status != 7 {
						t.Errorf("libcontainer: status %d, error %s, want the probe's status 7", got.Status, got.Err)
					}
				})
			}
		})
	}
}

func TestLauncher_RefusesWhatLibcontainerRefuses(t *testing.T) {
	in := func(change func(*process.Config)) *box {
		return withProbe(t, func(c *process.Config) {
			for name, text := range map[string]string{"script": "#!/nope\n", "junk": "\x00\x01\x02junk"} {
				must(t, os.WriteFile(filepath.Join(c.Rootfs, "bin", name), []byte(text), 0o755)) //nolint:gosec // executable
			}
			must(t, os.MkdirAll(filepath.Join(c.Rootfs, "host"), 0o700))
			change(c)
		})
	}
	plain, mapped := in(func(*process.Config) {}), in(inUserNamespace)
	check := func(name string, b *box, change func(*specs.Process)) {
		t.Run(name, func(t *testing.T) {
			on := *b
			on.t = t
			if got := on.wantSame(probed(change)); got.Status == 7 || len(got.Stdout) > 1 {
				t.Errorf("libcontainer ran the probe")
			}
		})
	}
	for _, v := range refusedVariants {
		check(v.name, plain, v.change)
		check(v.name+" in a user namespace", mapped, v.change)
	}
	check("a user that is not mapped", mapped, func(p *specs.Process) { p.User.UID = 70000 })
	check("a group that is not mapped", mapped, func(p *specs.Process) { p.User.GID = 70000 })
	check("a further group that is not mapped", mapped, func(p *specs.Process) { p.User.AdditionalGids = []uint32{70000} })
	check("a directory that may not be entered", mapped, func(p *specs.Process) { p.Cwd = "/host" })
	noGroups := func(c *process.Config) { inUserNamespace(c); filtered(t, deny("setgroups"))(c) }
	check("groups that the filter forbids", in(func(c *process.Config) { // it is loaded later with no-new-privileges
		noGroups(c)
		c.Spec.Process.NoNewPrivileges = true
	}), func(p *specs.Process) { p.User.AdditionalGids = []uint32{5} })
	if got := wantSameInit(t, noGroups, false); !strings.Contains(got.Err, "setgroups: operation not permitted") {
		t.Errorf("libcontainer: %+v, want that the filter forbids the groups", got)
	}
}
