// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

// namespace is containerd's for Docker's containers, and "/"+namespace their cgroup, or where systemd makes them slice.
// A dash in its name would make it one in another one.
const (
	namespace = harness.NamespacePrefix + "docker"
	slice     = "shimtestdocker.slice"
)

// systemd reports whether Docker has systemd make cgroups, as it does by default on cgroup v2 where systemd is pid 1.
func systemd() bool {
	_, v1 := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	_, none := os.Stat("/run/systemd/system") // sd_booted(3)
	return v1 == nil && none == nil
}

// dockerd is Docker's daemon and the containerd below it. One goroutine at a time may use it.
type dockerd struct {
	*harness.Containerd
	programs tools.Docker
	dir      string // everything of dockerd is below
	bin      string // what scripts find first
	baseline []string

	cmd    *exec.Cmd
	exited <-chan struct{}
}

// newDockerd prepares a Docker with further settings and starts nothing.
func newDockerd(env harness.Env, programs tools.Docker, more map[string]any) (*dockerd, error) {
	c, err := harness.NewContainerd(env)
	if err != nil {
		return nil, err
	}
	d := &dockerd{
		Containerd: c, programs: programs, dir: filepath.Join(c.Dir, "docker"), bin: filepath.Join(c.Dir, "bin"),
	}
	runtimes, err := d.runtimes()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	settings := map[string]any{
		"runtimes":             runtimes,
		"hosts":                []string{d.host()},
		"containerd":           c.Address,
		"containerd-namespace": namespace,
		"data-root":            filepath.Join(d.dir, "data"),
		"exec-root":            filepath.Join(d.dir, "exec"),
		"pidfile":              filepath.Join(d.dir, "pid"),
		"cgroup-parent":        "/" + namespace,
		"exec-opts":            []string{"native.cgroupdriver=cgroupfs"},
		"init-path":            programs.Init,
		"live-restore":         true,
		"iptables":             false, // there is nobody to talk to
		"ip6tables":            false,
		"userland-proxy":       false,
	}
	if systemd() { // as Docker does without being asked
		settings["cgroup-parent"], settings["exec-opts"] = slice, []string{"native.cgroupdriver=systemd"}
	}
	maps.Copy(settings, more)
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	// The users of a container's own come by on the way to their root file system.
	err = errors.Join(os.Chmod(c.Dir, 0o711), os.Mkdir(d.dir, 0o711), os.Mkdir(d.bin, 0o755),
		os.WriteFile(filepath.Join(d.dir, "daemon.json"), text, 0o600))
	err = errors.Join(err, writeScripts(d.bin, map[string]string{"docker": dockerScript, "processes": processesScript}))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return d, nil
}

const dockerScript = `#!/bin/sh
case $1 in
run | create)
	command=$1
	shift
	set -- "$command" --runtime "$RUNTIME" "$@"
	;;
esac
exec "$DOCKER" "$@"
`

const processesScript = `#!/bin/sh
docker top "$1" -o pid,args | tail -n +2 | tr -s ' ' | cut -d ' ' -f 2-
`

func (d *dockerd) host() string { return "unix://" + filepath.Join(d.dir, "sock") }

// remapped starts a Docker whose containers have users of their own, of which nothing but this test's mount namespace
// knows.
func remapped(t *testing.T) *dockerd {
	t.Helper()
	ids := filepath.Join(t.TempDir(), "ids")
	harness.Must(t, os.WriteFile(ids, []byte("nobody:100000:65536\n"), 0o644))
	for _, name := range []string{"/etc/subuid", "/etc/subgid"} {
		harness.Must(t, harness.Mount(ids, name, "", unix.MS_BIND))
		harness.AtEnd(t, func() error { return unix.Unmount(name, unix.MNT_DETACH) })
	}
	d, err := newDockerd(shared.Env, shared.programs, map[string]any{"userns-remap": "nobody:nogroup"})
	harness.Must(t, err)
	harness.AtEnd(t, d.close)
	// With it dockerd has its own store of images, which reads no OCI layout.
	image, err := shared.docker(t.Context(), nil, "save", harness.Image)
	harness.Must(t, err)
	if err := d.setUp(t.Context(), strings.NewReader(image)); err != nil {
		t.Fatalf("%v\n%s", err, d.logs())
	}
	return d
}

// setUp starts everything and loads the image.
func (d *dockerd) setUp(ctx context.Context, image io.Reader) error {
	if err := d.Containerd.Start(ctx); err != nil {
		return err
	}
	if err := d.start(); err != nil {
		return err
	}
	if _, err := d.docker(ctx, image, "load"); err != nil {
		return err
	}
	if _, err := d.docker(ctx, nil, "tag", harness.Image, "busybox"); err != nil {
		return err
	}
	// The first leaves the name of the host's network behind.
	if _, err := d.docker(ctx, nil, "run", "--rm", "--userns", "host", "--network", "host", "busybox", "true"); err != nil {
		return err
	}
	d.baseline = d.leaks()
	return nil
}

// start starts dockerd and returns when it serves.
func (d *dockerd) start() error {
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // dockerd has it
	cmd := exec.Command(d.programs.Daemon, "--config-file", filepath.Join(d.dir, "daemon.json"),
		"--containerd-plugins-namespace", namespace+"-plugins")
	cmd.Env = []string{"PATH=" + d.Env.Path(), "HOME=" + d.dir}
	cmd.Dir, cmd.Stdout, cmd.Stderr = d.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if d.exited, err = harness.Spawn(cmd); err != nil {
		return err
	}
	d.cmd = cmd
	var ended error
	return errors.Join(harness.Poll(func() error {
		select {
		case <-d.exited:
			ended = fmt.Errorf("dockerd ended: %v", cmd.ProcessState)
			return nil
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(10*time.Second))
		defer cancel()
		_, err := d.docker(ctx, nil, "version")
		return err
	}), ended)
}

// end ends dockerd with a signal. Containers go on.
func (d *dockerd) end(signal syscall.Signal) error {
	if d.cmd == nil {
		return nil
	}
	err := d.cmd.Process.Signal(signal)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case <-d.exited:
		d.cmd = nil
		return err
	case <-time.After(harness.Slow(time.Minute)):
		return errors.Join(err, fmt.Errorf("dockerd: does not end after %v", signal), d.cmd.Process.Kill())
	}
}

// docker runs docker with the daemon and returns its output.
func (d *dockerd) docker(ctx context.Context, stdin io.Reader, arg ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.programs.CLI, arg...)
	cmd.Env = []string{"DOCKER_HOST=" + d.host(), "HOME=" + d.dir, "PATH=" + os.Getenv("PATH")}
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("docker %s: %w\n%s", strings.Join(arg, " "), err, stderr.Bytes())
	}
	return string(out), nil
}

// scope is where everything of the containers is, of both runtimes.
func (d *dockerd) scope() harness.Scope {
	exec := filepath.Join(d.dir, "exec")
	scope := harness.Scope{
		Namespace: namespace,
		MountsIn:  d.Dir,
		Dirs: []string{
			filepath.Join(exec, "runtime-runc", namespace), // states of runc
			filepath.Join(exec, "containerd"),              // fifos
			filepath.Join(d.State, "io.containerd.runtime.v2.task", namespace),
			filepath.Join(d.dir, "data", "containers"),
			d.Sockets,
		},
	}
	// Docker 26 unmounts a network namespace at once, and removes the empty file within a minute.
	if major, _, _ := strings.Cut(d.programs.Version, "."); major != "26" {
		scope.Dirs = append(scope.Dirs, filepath.Join(exec, "netns"))
	}
	return scope
}

// logs is the end of what dockerd and containerd wrote.
func (d *dockerd) logs() string {
	text, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):]) + d.LogFrom(max(0, d.LogSize()-4000))
}

// leaks is everything of containers that there is.
func (d *dockerd) leaks() []string {
	leaks := d.scope().Leaks()
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} { // v2 and v1
		scopes, err := filepath.Glob(pattern + slice + "/*.scope")
		if err != nil {
			leaks = append(leaks, err.Error())
		}
		leaks = append(leaks, scopes...)
	}
	return leaks
}

func (d *dockerd) kind() string { return "docker" }

func (d *dockerd) versions() string {
	client, err := d.docker(context.Background(), nil, "version", "--format", "{{.Client.Version}}")
	if err != nil {
		client = err.Error()
	}
	return fmt.Sprintf("dockerd %s, docker %s, containerd %s", d.programs.Version, strings.TrimSpace(client), d.Version)
}

func (d *dockerd) place() string  { return d.Dir }
func (d *dockerd) left() []string { return beyond(d.baseline, d.leaks()) }
func (d *dockerd) remove() error  { return d.scope().Remove() }

func (d *dockerd) environ(string) []string {
	return []string{
		"PATH=" + d.bin + ":" + os.Getenv("PATH"), "HOME=" + d.dir, "DOCKER=" + d.programs.CLI, "DOCKER_HOST=" + d.host(),
	}
}

func (d *dockerd) clean(ctx context.Context) error {
	var err error
	if d.cmd == nil { // the case ended dockerd
		err = d.start()
	}
	ids, e := d.docker(ctx, nil, "ps", "--all", "--quiet", "--no-trunc")
	err = errors.Join(err, e)
	if list := strings.Fields(ids); len(list) > 0 {
		_, e := d.docker(ctx, nil, append([]string{"rm", "--force", "--volumes"}, list...)...)
		err = errors.Join(err, e)
	}
	_, e = d.docker(ctx, nil, "volume", "prune", "--force", "--all")
	return errors.Join(err, e)
}

func (d *dockerd) close() error {
	err := errors.Join(d.end(syscall.SIGTERM), d.scope().Remove())
	if systemd() {
		if out, e := exec.Command("systemctl", "stop", slice).CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("stop %s: %w\n%s", slice, e, out))
		}
	}
	return errors.Join(err, d.Containerd.Close())
}
