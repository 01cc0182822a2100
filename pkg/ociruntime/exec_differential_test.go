// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/apparmor"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
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

func (b *box) outcome(start way, p *specs.Process) (o outcome) {
	b.t.Helper()
	dir := b.t.TempDir()
	file := func(name string) string { return "file://" + filepath.Join(dir, name) }
	io := stdio.Config{Stdout: file("out"), Stderr: file("err"), Terminal: p.Terminal}
	streams, err := stdio.Open(b.t.Context(), io, idmap.Owner{})
	testx.Must(b.t, err)
	defer streams.Close()
	var h process.Handle
	lp, err := translate.Process(p, streams)
	if err == nil {
		h, err = start(b.RuntimeContainer.(*container), b.t.Context(), lp, streams)
	}
	if err != nil {
		if errors.As(err, &unsupported{}) {
			b.t.Fatalf("the launcher does not cover it: %v", err)
		}
		return outcome{Err: strings.ReplaceAll(err.Error(), "fsmount:fscontext:proc/", "/proc/")} // a /proc of libcontainer's
	}
	o.Status = h.Wait().Status
	testx.Must(b.t, streams.Drain(b.t.Context()))
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

func addProbe(tb testing.TB, c *process.Config) {
	tb.Helper()
	code, err := probe()
	testx.Must(tb, err)
	program(tb, filepath.Join(c.Rootfs, "bin/probe"), code)
}

// withProbe is a container to be probed.
func withProbe(tb testing.TB, change func(*process.Config)) *box {
	tb.Helper()
	c := newConfig(tb, "sleep", "1000")
	addProbe(tb, &c)
	for _, dir := range []string{"etc", "home/private"} {
		testx.Must(tb, os.MkdirAll(filepath.Join(c.Rootfs, dir), 0o755))
	}
	testx.Must(tb, os.Chmod(filepath.Join(c.Rootfs, "home/private"), 0o700))
	testx.Must(tb, os.WriteFile(filepath.Join(c.Rootfs, "forbidden"), nil, 0o644)) //nolint:gosec // some module may forbid it
	passwd := "root:x:0:0:root:/root:/bin/sh\n\n  # comment\nuser:x:1000:1000::/home/user:/bin/sh\r\n" +
		"odd:x:1001\nempty:x:1002:1002:::\nlast:x:1003:1003::/last"
	testx.Must(tb, os.WriteFile(filepath.Join(c.Rootfs, "etc/passwd"), []byte(passwd), 0o644)) //nolint:gosec // as in any system
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
		{"PID namespace of another", inPIDNamespaceOfAnother(tb)},
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
			t.Parallel()
			b := withProbe(t, w.change)
			for j, v := range variants {
				if leftOut(i, j) {
					continue
				}
				t.Run(v.name, func(t *testing.T) {
					if got := b.in(t).wantSame(probed(v.change)); got.Status != 7 {
						t.Errorf("libcontainer: status %d, error %s, want the probe's status 7", got.Status, got.Err)
					}
				})
			}
		})
	}
}

// scripts are programs that the kernel refuses.
func scripts(tb testing.TB, c *process.Config) {
	tb.Helper()
	for name, text := range map[string]string{"script": "#!/nope\n", "junk": "\x00\x01\x02junk"} {
		program(tb, filepath.Join(c.Rootfs, "bin", name), []byte(text))
	}
}

func TestLauncher_RefusesWhatLibcontainerRefuses(t *testing.T) {
	noGroups := func(c *process.Config) { inUserNamespace(c); filtered(t, deny("setgroups"))(c) }
	unmapped := []variant{
		{"a user that is not mapped", func(p *specs.Process) { p.User.UID = 70000 }},
		{"a group that is not mapped", func(p *specs.Process) { p.User.GID = 70000 }},
		{"a further group that is not mapped", func(p *specs.Process) { p.User.AdditionalGids = []uint32{70000} }},
		{"a directory that may not be entered", func(p *specs.Process) { p.Cwd = "/host" }},
	}
	for _, in := range []struct {
		configVariant
		variants []variant
	}{
		{configVariant{"plain", func(*process.Config) {}}, refusedVariants},
		{configVariant{"user namespace", inUserNamespace}, append(unmapped, refusedVariants...)},
		{configVariant{"groups that the filter forbids", func(c *process.Config) { // it is loaded later with no-new-privileges
			noGroups(c)
			c.Spec.Process.NoNewPrivileges = true
		}}, []variant{{"a group", func(p *specs.Process) { p.User.AdditionalGids = []uint32{5} }}}},
	} {
		t.Run(in.name, func(t *testing.T) {
			t.Parallel()
			b := withProbe(t, func(c *process.Config) {
				scripts(t, c)
				testx.Must(t, os.MkdirAll(filepath.Join(c.Rootfs, "host"), 0o700))
				in.change(c)
			})
			for _, v := range in.variants {
				t.Run(v.name, func(t *testing.T) {
					if got := b.in(t).wantSame(probed(v.change)); got.Status == 7 || len(got.Stdout) > 1 {
						t.Errorf("libcontainer ran the probe")
					}
				})
			}
		})
	}
	got := wantSameInit(t, noGroups, false)
	testx.WantText(t, errors.New(got.Err), "setgroups: operation not permitted")
}

// confinement is a way to confine containers, and what the kernel says of a process that is confined so.
type confinement struct {
	prepare   func(*process.Config) // a container in which /forbidden is forbidden to what is confined
	set       func(*specs.Process)
	other     func(*specs.Process) // in another way
	current   string
	inherited bool // an exec that asks for nothing has what the container has
}

// confinedVariants are those that change the order of what the launcher does.
func confinedVariants() []variant {
	names := []string{
		"nothing asked for", "a user with groups", "capabilities of a user", "ambient capabilities", "no new privileges",
		"no new privileges of a user", "limits", "a terminal", "a terminal with a size", "a directory of root's",
	}
	return slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return !slices.Contains(names, v.name) })
}

// wantConfined compares the launcher with libcontainer in containers that are confined, and in those where only the
// exec is.
func wantConfined(t *testing.T, by confinement) {
	t.Helper()
	for i, w := range []configVariant{
		{"plain", func(*process.Config) {}},
		{"no new keyring", func(c *process.Config) { c.NoNewKeyring = true }},
		{"user namespace", inUserNamespace},
		{"seccomp", filtered(t, nil)},
	} {
		t.Run(w.name, func(t *testing.T) {
			prepare := func(c *process.Config) { w.change(c); by.prepare(c) }
			confined := withProbe(t, func(c *process.Config) { prepare(c); by.set(c.Spec.Process) })
			free := withProbe(t, prepare)
			for j, v := range confinedVariants() {
				if (i+j)%slowness() != 0 {
					continue // as in TestLauncher_DoesWhatLibcontainerDoes
				}
				t.Run(v.name, func(t *testing.T) {
					by.wantProbe(t, confined, v)
					by.wantProbe(t, free, v)
				})
			}
			if got := by.confines(confined.wantSame(probed(nil))); got != by.inherited {
				t.Errorf("an exec that asks for no confinement has the container's: %v, want %v", got, by.inherited)
			}
			if by.confines(confined.wantSame(probed(by.other))) {
				t.Error("an exec that asks for another confinement has that of the container")
			}
		})
	}
	t.Run("another /proc", func(t *testing.T) {
		b := withProbe(t, func(c *process.Config) {
			by.prepare(c)
			by.set(c.Spec.Process)
			c.Spec.Process.Args = []string{"sh", "-c", "busybox mount -t tmpfs tmpfs /proc && >/mounted && exec sleep 1000"}
		})
		b.awaitFile("mounted")
		for _, terminal := range []bool{false, true} {
			p := probed(by.set)
			p.Terminal = terminal
			if got := b.wantSame(p); !got.has(forbidden) {
				t.Errorf("the probe, with a terminal: %v, is not confined: %v", terminal, got)
			}
		}
	})
}

// awaitFile waits until the container has made a file in its root.
func (b *box) awaitFile(name string) {
	b.t.Helper()
	testx.Eventually(b.t, name, func() bool { return testx.Exists(filepath.Join(b.config.Rootfs, name)) })
}

// has reports whether the probe wrote the line.
func (o outcome) has(line string) bool {
	return slices.ContainsFunc(o.Stdout, func(l string) bool { return strings.TrimRight(l, "\r\n") == line })
}

const forbidden = `open("/forbidden", O_RDONLY): error 13`

// confines reports whether the probe had this confinement.
func (by confinement) confines(o outcome) bool {
	return o.has("/proc/self/attr/current: " + by.current)
}

func (by confinement) wantProbe(t *testing.T, b *box, v variant) {
	t.Helper()
	p := probed(v.change)
	by.set(p)
	got := b.in(t).wantSame(p)
	if !by.confines(got) || !got.has(forbidden) {
		t.Errorf("status %d, error %s, want the confinement %s, which forbids /forbidden:\n%s",
			got.Status, got.Err, by.current, strings.Join(got.Stdout, ""))
	}
}

func TestLauncher_ConfinesByAppArmor(t *testing.T) {
	if !apparmor.IsEnabled() {
		lacking(t, "apparmor", "a kernel with AppArmor")
	}
	name := fmt.Sprintf("shim-test-%d", os.Getpid())
	loadProfile(t, name, "deny /forbidden r,")
	loadProfile(t, name+"-other", "")
	set := func(name string) func(*specs.Process) { return func(p *specs.Process) { p.ApparmorProfile = name } }
	wantConfined(t, confinement{
		prepare: func(*process.Config) {}, set: set(name), other: set(name + "-other"), current: name + " (enforce)",
	})
}

// needSELinux skips the test, or fails it, where there is no SELinux with the policy of integration/vm/guest.
func needSELinux(t *testing.T) {
	t.Helper()
	if !selinux.GetEnabled() || selinux.SecurityCheckContext(fileLabel("forbidden_t")) != nil {
		lacking(t, "selinux", "SELinux with the policy of make test-selinux")
	}
}

func processLabel(name string) string { return "system_u:system_r:" + name + ":s0:c1,c2" }

func fileLabel(name string) string { return "system_u:object_r:" + name + ":s0" }

func TestLauncher_ConfinesBySELinux(t *testing.T) {
	needSELinux(t)
	set := func(name string) func(*specs.Process) {
		return func(p *specs.Process) { p.SelinuxLabel = processLabel(name) }
	}
	by := confinement{
		prepare: func(c *process.Config) {
			testx.Must(t, selinux.SetFileLabel(filepath.Join(c.Rootfs, "forbidden"), fileLabel("forbidden_t")))
			c.Spec.Linux.MountLabel = fileLabel("container_file_t")
		},
		set: set("container_t"), other: set("other_t"), current: processLabel("container_t"), inherited: true,
	}
	wantConfined(t, by)
	t.Run("keyring", func(t *testing.T) {
		b := withProbe(t, func(c *process.Config) {
			by.prepare(c)
			by.set(c.Spec.Process)
			c.Spec.Process.Args = []string{"probe", "leave keyring"} // so that each exec makes it
		})
		b.awaitFile("left")
		if got := b.wantSame(probed(by.set)); !slices.ContainsFunc(got.Stdout, func(line string) bool {
			return strings.HasSuffix(line, ";_ses."+b.config.ID+"\n")
		}) {
			t.Errorf("the exec may not use its keyring, which must have its label:\n%s", strings.Join(got.Stdout, ""))
		}
	})
	t.Run("refused", func(t *testing.T) {
		b := withProbe(t, by.prepare)
		got := b.wantSame(probed(set("refused_t")))
		if want := "exec /bin/probe: permission denied\n"; got.Status != 255 || !slices.Contains(got.Stderr, want) {
			t.Errorf("an exec with a label that it may not have = %+v, want status 255 and %q", got, want)
		}
	})
}

// loadProfile loads a profile that allows all but what its rules deny.
func loadProfile(t *testing.T, name, rules string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "profile")
	text := fmt.Sprintf(`profile %s flags=(attach_disconnected,mediate_deleted) {
  capability, dbus, file, mount, network, pivot_root, ptrace, signal, umount, unix,
  %s
}
`, name, rules)
	testx.Must(t, os.WriteFile(file, []byte(text), 0o600))
	parser := func(action string) error {
		defer testReaper.Suspend()() // a child that only we wait for
		out, err := exec.Command("/sbin/apparmor_parser", "--skip-cache", action, file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("apparmor_parser %s: %w: %s", action, err, out)
		}
		return nil
	}
	testx.Must(t, parser("--replace"))
	t.Cleanup(func() { testx.Must(t, parser("--remove")) })
}

// On any kernel: where there is no SELinux, all labels are refused.
func TestLauncher_RefusesTheLabelThatLibcontainerRefuses(t *testing.T) {
	b, keyring := withProbe(t, nil), withProbe(t, func(c *process.Config) { c.NoNewKeyring = true })
	label := func(p *specs.Process) { p.SelinuxLabel = "nonsense" }
	b.wantRefused(label, "write /proc/self/attr/keycreate: invalid argument", nil, onTerminal)
	keyring.wantRefused(label, "write /proc/thread-self/attr/exec: invalid argument", nil)
}

func onTerminal(p *specs.Process) { p.Terminal = true }

func TestLauncher_RefusesTheProfileThatLibcontainerRefuses(t *testing.T) {
	if !apparmor.IsEnabled() {
		lacking(t, "apparmor", "a kernel with AppArmor")
	}
	b := withProbe(t, nil)
	profile := func(p *specs.Process) { p.ApparmorProfile = "shim-test-no-such-profile" }
	b.wantRefused(profile, "apparmor failed to apply profile: write /proc/thread-self/attr/apparmor/exec: no such file or directory",
		nil, onTerminal, func(p *specs.Process) { p.NoNewPrivileges = true }, func(p *specs.Process) { p.Args = []string{"nope"} })
}

// wantRefused compares what both ways say of execs that neither starts: with change, and each of the others.
func (b *box) wantRefused(change func(*specs.Process), want string, others ...func(*specs.Process)) {
	b.t.Helper()
	for _, other := range others {
		p := probed(change)
		if other != nil {
			other(p)
		}
		if got := b.wantSame(p); !strings.HasSuffix(got.Err, want) {
			b.t.Errorf("libcontainer: status %d, error %q, want one that ends with %q", got.Status, got.Err, want)
		}
	}
}

// everySyscall are the names of all system calls but those of no use in a container, as a profile allows them.
func everySyscall(tb testing.TB) []string {
	tb.Helper()
	const beyondAll = 1000 // numbers of this processor; other processors have some of their own
	var names []string
	for number := range libseccomp.ScmpSyscall(beyondAll) {
		name, err := number.GetName()
		if err == nil && !slices.Contains([]string{"bpf", "unshare", "mount", "clone3", "keyctl", "add_key", "kcmp"}, name) {
			names = append(names, name)
		}
	}
	return names
}

// architectures are those of a profile for this processor.
func architectures() []specs.Arch {
	if runtime.GOARCH == "arm64" {
		return []specs.Arch{specs.ArchAARCH64, specs.ArchARM}
	}
	return []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}
}

func filtered(tb testing.TB, change func(*specs.LinuxSeccomp)) func(*process.Config) {
	tb.Helper()
	return func(c *process.Config) {
		eperm := uint(unix.EPERM)
		c.Spec.Linux.Seccomp = &specs.LinuxSeccomp{
			DefaultAction: specs.ActErrno, DefaultErrnoRet: &eperm,
			Architectures: architectures(),
			Syscalls: []specs.LinuxSyscall{
				{Names: everySyscall(tb), Action: specs.ActAllow},
				{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.ENOSYS))},
				{
					Names: []string{"kcmp"}, Action: specs.ActAllow,
					Args: []specs.LinuxSeccompArg{{Index: 2, Value: 1, Op: specs.OpEqualTo}},
				},
			},
		}
		if change != nil {
			change(c.Spec.Linux.Seccomp)
		}
	}
}

// deny takes calls from those that the profile allows.
func deny(calls ...string) func(*specs.LinuxSeccomp) {
	return func(s *specs.LinuxSeccomp) {
		s.Syscalls[0].Names = slices.DeleteFunc(s.Syscalls[0].Names,
			func(name string) bool { return slices.Contains(calls, name) })
	}
}

// Without faccessat2(2) the mode, the owner and the group of a file say whether it is the program.
func TestLauncher_LooksForProgramsLikeLibcontainer(t *testing.T) {
	const uid, gid, further, other = 1000, 1001, 1002, 1003
	var programs []string
	b := withProbe(t, func(c *process.Config) {
		filtered(t, deny("faccessat2"))(c)
		code, err := probe()
		testx.Must(t, err)
		for _, mode := range []os.FileMode{0o755, 0o655, 0o745, 0o754, 0o644} {
			for i, owner := range [][2]int{{uid, other}, {other, gid}, {other, further}, {other, other}} {
				path := fmt.Sprintf("/bin/probe-%o-%d", mode, i)
				programs = append(programs, path)
				file := filepath.Join(c.Rootfs, path)
				program(t, file, code)
				testx.Must(t, os.Chown(file, owner[0], owner[1]))
				testx.Must(t, os.Chmod(file, mode))
			}
		}
	})
	var ran, refused atomic.Int32
	t.Cleanup(func() { // after the subtests
		if ran.Load() == 0 || refused.Load() == 0 {
			t.Errorf("%d programs ran, %d did not, want some of both", ran.Load(), refused.Load())
		}
	})
	for _, v := range []variant{
		{"root", func(*specs.Process) {}},
		{"a user", func(p *specs.Process) {
			p.User = specs.User{UID: uid, GID: gid, AdditionalGids: []uint32{5, further}}
			p.Capabilities = &specs.LinuxCapabilities{}
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			for _, path := range programs {
				p := probed(v.change)
				p.Args[0] = path
				if b.in(t).wantSame(p).Status == 7 {
					ran.Add(1)
				} else {
					refused.Add(1)
				}
			}
		})
	}
}

// allVariants is set by make nightly. Else each variant is tried in some containers.
const allVariants = "SHIM_TEST_ALL_INITS"

// leftOut reports whether variant j is not tried in container i.
func leftOut(i, j int) bool {
	every := len(initBases) * slowness() // each variant in one base
	if os.Getenv(allVariants) != "" {
		every = 1
	}
	return (i+j)%every != 0
}

// way is one of the two ways to start an exec.
type way func(*container, context.Context, *libcontainer.Process, *stdio.Streams) (process.Handle, error)

// The ways answer a nil interface with an error.
var (
	byLibcontainer way = func(c *container, ctx context.Context, p *libcontainer.Process, s *stdio.Streams) (process.Handle, error) {
		h, err := libcontainerStarter{testReaper}.startExec(ctx, c, p, s, nil)
		if err != nil {
			return nil, err
		}
		return h, nil
	}
	byLauncher way = func(c *container, ctx context.Context, p *libcontainer.Process, s *stdio.Streams) (process.Handle, error) {
		h, err := c.runtime.launcher.startExec(ctx, c, p, s, nil)
		if err != nil {
			return nil, err
		}
		return h, nil
	}
)
