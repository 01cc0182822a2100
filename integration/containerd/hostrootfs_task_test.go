// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

const (
	annotationHostUser = "io.containerd.sandbox.v1/host-rootfs.user"
	annotationTaskDir  = "io.containerd.sandbox.v1/host-rootfs.task-dir"
)

// hostIDs is what id prints of a user of the host.
func hostIDs(t *testing.T, user string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "id "+user+"; getent passwd "+user+" | cut -d : -f 6").Output()
	if err != nil {
		t.Fatalf("id %s: %v", user, err)
	}
	return string(out)
}

func TestHostRootfs_UserOfTheHostByName(t *testing.T) {
	e, empty := newHostEnv(t)
	const user = "daemon" // of every Debian
	want := hostIDs(t, user)
	c := e.run("c1", hostConfig(empty, annotations(annotationHostUser, user)), "/bin/sh", "-c", "id; echo $HOME; sleep 1000")
	c.out.WaitFor(t, strings.SplitAfter(want, "\n")[1])
	if got := c.out.String(); got != want {
		t.Errorf("the container runs as %q, want %q", got, want)
	}
	for id, tt := range map[string]struct {
		change func(*specs.Process)
		want   string
	}{
		"as-the-container": {nil, want},
		"as-another":       {func(p *specs.Process) { p.User = specs.User{UID: 4711, GID: 4712} }, "uid=4711 gid=4712 groups=4712\n/\n"},
	} {
		x := c.exec(id, config{}, tt.change, "/bin/sh", "-c", "id; echo $HOME")
		e.must(x.Start(e.ctx), "start an exec")
		x.wantExit(0)
		if got := x.out.String(); got != tt.want {
			t.Errorf("the exec %s runs as %q, want %q", id, got, tt.want)
		}
	}
	c.kill()
	group := e.run("c2", hostConfig(empty, annotations(annotationHostUser, user+":games")), "/usr/bin/id", "-gn")
	group.wantExit(0)
	if got := group.out.String(); got != "games\n" {
		t.Errorf("the group is %q, want games", got)
	}
	for id, tt := range map[string]struct {
		opts  []oci.SpecOpts
		words []string
	}{
		"nobody-of-that-name": {with(annotations(annotationHostUser, "no-such-user")), []string{annotationHostUser, `"no-such-user"`}},
		"two-users":           {with(annotations(annotationHostUser, user), oci.WithUserID(7)), []string{annotationHostUser, "process.user names user 7"}},
		"users-of-its-own":    {with(annotations(annotationHostUser, user), oci.WithUserNamespace(idMap, idMap)), []string{annotationHostUser, "user namespace"}},
	} {
		_, err := e.tryCreate(id, hostConfig(empty, tt.opts...), "/bin/true")
		wantError(t, err, errdefs.ErrInvalidArgument, tt.words...)
	}
	_, err := e.tryCreate("image", config{opts: with(annotations(annotationHostUser, user))}, "true")
	wantError(t, err, errdefs.ErrInvalidArgument, annotationHostUser, "has no effect without")
}

// A program that is setuid, or has file capabilities, would make its user root among the files of the host.
func TestHostRootfs_UserOfTheHostStaysThatUser(t *testing.T) {
	e, _ := newHostEnv(t)
	image := []client.NewContainerOpts{e.inSnapshot(func(root string) error {
		setuid, capable := filepath.Join(root, "setuid"), filepath.Join(root, "capable")
		kill := make([]byte, 20)                           // capabilities(7), "File capability extended attribute versioning"
		kill[0], kill[3], kill[4] = 1, 2, 1<<unix.CAP_KILL // effective, version 2, permitted
		return errors.Join(copyProgram("/usr/bin/id", setuid), os.Chmod(setuid, 0o755|os.ModeSetuid),
			copyProgram("/usr/bin/grep", capable), unix.Setxattr(capable, "security.capability", kill, 0))
	})}
	opts := with(annotations(annotationHostRootfs, "default", annotationHostUser, "daemon"), oci.WithNewPrivileges)
	var none strings.Builder // what proc(5) says of a process without capabilities
	for _, set := range []string{"Inh", "Prm", "Eff", "Amb"} {
		none.WriteString("Cap" + set + ":\t0000000000000000\n")
	}
	for id, tt := range map[string]struct {
		program []string
		want    string
	}{
		"setuid":  {[]string{"/setuid", "-u"}, "1\n"},
		"capable": {[]string{"/capable", "Cap[IPEA]", "/proc/self/status"}, none.String()},
	} {
		c := e.run(id, config{opts: opts, new: image}, tt.program...)
		c.wantExit(0)
		if got := c.out.String(); got != tt.want {
			t.Errorf("%v as the container prints %q, want %q", tt.program, got, tt.want)
		}
		c = e.run(id+"-execs", config{opts: opts, new: image}, "sleep", "1000")
		for exec, user := range map[string]specs.User{"root": {}, "another": {UID: 1}} {
			x := c.exec(exec, config{}, func(p *specs.Process) { p.User = user }, tt.program...)
			e.must(x.Start(e.ctx), "start an exec")
			x.wantExit(0)
			if got := x.out.String(); got != tt.want {
				t.Errorf("%v as the exec %s prints %q, want %q", tt.program, exec, got, tt.want)
			}
		}
		c.kill()
	}
}

func copyProgram(from, to string) error {
	program, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, program, 0o755) //nolint:gosec // as programs are
}

func TestHostRootfs_ProgramsBelowTheTaskDirectoryComeFirst(t *testing.T) {
	e, empty := newHostEnv(t)
	if harness.AllExecsByLibcontainer() {
		t.Skip("SKIPPED: libcontainer looks in PATH alone")
	}
	task := publicDir(t)
	for name, mode := range map[string]os.FileMode{"local/tool": 0o755, "tool": 0o755, "bin/other": 0o755, "id": 0o644} {
		file := filepath.Join(task, name)
		e.must(os.MkdirAll(filepath.Dir(file), 0o755), "make a directory")
		e.must(os.WriteFile(file, []byte("#!/bin/sh\necho "+name+"\n"), 0o600), "write a program")
		e.must(os.Chmod(file, mode), "let it be executed")
	}
	list := annotations(annotationHostRootfs, "default,"+task+":/task", annotationTaskDir, "/task")
	cfg := config{rootfs: empty, opts: with(list, oci.WithDefaultPathEnv)}
	for program, want := range map[string]string{
		"tool": "local/tool\n", "bin/other": "bin/other\n", "/task/tool": "tool\n", "id": "uid=0(root)", // not executable
	} {
		id := "c" + strings.ReplaceAll(program, "/", "-")
		id = strings.ReplaceAll(id, "c-", "abs-")
		c := e.run(id, cfg, program)
		c.wantExit(0)
		if got := c.out.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s prints %q, want %q", program, got, want)
		}
	}
	c := e.run("c1", cfg, "sleep", "1000")
	x := c.exec("e1", config{}, nil, "tool")
	e.must(x.Start(e.ctx), "start an exec")
	x.wantExit(0)
	if got := x.out.String(); got != "local/tool\n" {
		t.Errorf("the exec prints %q, want that of the task", got)
	}
	c.kill()
	_, err := e.tryCreate("absent", cfg, "nope")
	wantError(t, err, errdefs.ErrInvalidArgument, `exec: "nope": executable file not found in $PATH`)
	_, err = e.tryCreate("libcontainer", config{rootfs: empty, opts: with(list, harness.ExecByLibcontainer)}, "tool")
	wantError(t, err, errdefs.ErrFailedPrecondition, "host-rootfs.task-dir: not possible", "personality")
}
