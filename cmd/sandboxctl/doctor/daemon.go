// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// Daemon is the process of containerd.
type Daemon struct {
	Pid  int      // 0: none runs, and a configuration is read as it would read it
	Exe  string   // a path that leads to its binary, even if that was replaced
	Args []string // its command line
	Path string   // its PATH
	Dir  string   // a path that leads to its working directory
}

// findDaemon finds the process that listens on containerd's socket.
func (e *Examination) findDaemon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	pid, err := e.Probes.Peer(ctx, e.Root.Path(e.Address))
	if err != nil {
		e.daemonErr = err
		return
	}
	text, err := os.ReadFile(e.Root.ProcFile(pid, "cmdline"))
	if err != nil {
		e.daemonErr = fmt.Errorf("who listens on %s cannot be seen from here: %w", e.Address, err)
		return
	}
	e.daemon = Daemon{
		Pid: pid, Exe: e.Root.ProcFile(pid, "exe"), Dir: e.Root.ProcFile(pid, "cwd"),
		Args: strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"),
	}
	environ, _ := os.ReadFile(e.Root.ProcFile(pid, "environ")) // without it the PATH is empty, which another check says
	for v := range strings.SplitSeq(string(environ), "\x00") {
		if value, found := strings.CutPrefix(v, "PATH="); found {
			e.daemon.Path = value
		}
	}
}

// peer asks the kernel who listens on a socket. Only root, or the user who runs this program, is believed to be
// containerd, since its binary is run.
func peer(ctx context.Context, socket string) (int, error) {
	conn, pid, err := shim.DialOwn(ctx, socket)
	if err == nil {
		_ = conn.Close() // nothing was written
	}
	return pid, err
}

func (e *Examination) containerd(context.Context) []Finding {
	if e.daemonErr != nil {
		return []Finding{bad("containerd does not answer on %s: %v", e.Address, e.daemonErr)}
	}
	if e.versionErr != nil {
		return []Finding{bad("containerd, pid %d, accepts connections on %s but does not answer: %v", e.daemon.Pid, e.Address,
			e.versionErr).fix("kill -USR1 %d writes its goroutines to its log; systemctl restart containerd", e.daemon.Pid)}
	}
	return []Finding{ok("pid %d answers on %s", e.daemon.Pid, e.Address)}
}

// The releases of containerd that are supported: docs/compatibility.md has those that are tested.
const (
	oldestContainerd = 1_06
	newestContainerd = 2_04
)

func (e *Examination) containerdVersion(context.Context) []Finding {
	if e.daemonErr != nil || e.versionErr != nil {
		return []Finding{none("containerd does not answer")}
	}
	switch release := releaseOf(e.version); {
	case release == 0:
		return []Finding{warn("containerd %q: not a version of the form 2.4.2", e.version)}
	case release < oldestContainerd:
		return []Finding{bad("containerd %s: 1.6 is the oldest that the shim answers", e.version)}
	case release > newestContainerd:
		return []Finding{warn("containerd %s is newer than what this release was tested with, 2.4", e.version).
			fix("see whether there is a newer release of containerd-shim-sandbox-v1")}
	}
	return []Finding{ok("%s", e.version)}
}

// releaseOf returns the release of a version, such as 204 for v2.4.2; 0 for what is no version.
func releaseOf(version string) int {
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor); n < 2 {
		return 0
	}
	return major*100 + minor
}

// config is containerd's configuration, of whichever version.
type config struct {
	file string // "": there is none
	all  map[string]any
}

// table returns a table, nil if it is absent.
func (c config) table(path ...string) map[string]any {
	t := c.all
	for _, name := range path {
		t, _ = t[name].(map[string]any)
	}
	return t
}

func (c config) text(path ...string) string {
	last := len(path) - 1
	s, _ := c.table(path[:last]...)[path[last]].(string)
	return s
}

// disabled reports whether one of the plugins of a name is not loaded, such as io.containerd.grpc.v1.cri for "cri".
func (c config) disabled(suffix string) bool {
	list, _ := c.all["disabled_plugins"].([]any)
	for _, item := range list {
		if name, _ := item.(string); name == suffix || strings.HasSuffix(name, "."+suffix) {
			return true
		}
	}
	return false
}

// defaultConfigFile is what containerd reads without --config.
const defaultConfigFile = "/etc/containerd/config.toml"

// configFile returns the file that its command line names.
func (d Daemon) configFile() string {
	file := machine.FlagValue(d.Args, "config", "c")
	if file != "" && !filepath.IsAbs(file) {
		return filepath.Join(d.Dir, file)
	}
	return file
}

// readConfig has containerd print its configuration: only it knows what it makes of imports and of older versions.
func (e *Examination) readConfig(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	e.config.file = defaultConfigFile
	if file := e.daemon.configFile(); file != "" {
		e.config.file = file
	}
	text, err := e.Probes.Dump(ctx, e.daemon)
	if err == nil {
		err = toml.Unmarshal(text, &e.config.all)
	}
	e.configErr = err
	if e.State == "" {
		e.State = e.configuredState()
	}
}

// configuredState returns the state directory that containerd has, as far as that can be seen.
func (e *Examination) configuredState() string {
	return cmp.Or(machine.FlagValue(e.daemon.Args, "state"), e.config.text("state"), "/run/containerd")
}

// errOtherMounts keeps the binary of a containerd in a container from being run here.
var errOtherMounts = errors.New("it is in a container, or has mounts of its own: its binary is not run")

func dumpConfig(ctx context.Context, d Daemon) ([]byte, error) {
	name := "containerd"
	found, err := exec.LookPath(name)
	if d.Pid > 0 {
		own, _ := os.Readlink("/proc/self/ns/mnt") // without it none is the same
		if mounts, _ := os.Readlink(filepath.Join(filepath.Dir(d.Exe), "ns/mnt")); mounts == "" || mounts != own {
			return nil, fmt.Errorf("containerd, pid %d: %w", d.Pid, errOtherMounts)
		}
		// Not the link in /proc, which may be another process's by now, but where it leads, or what has replaced that.
		name = d.Args[0]
		found, err = os.Readlink(d.Exe)
		found = strings.TrimSuffix(found, " (deleted)")
	}
	if err == nil {
		found, err = runnable(found)
	}
	if err != nil {
		return nil, fmt.Errorf("containerd config dump: %w", err)
	}
	cmd := exec.CommandContext(ctx, found)
	cmd.Args = []string{name}
	if file := d.configFile(); file != "" {
		cmd.Args = append(cmd.Args, "--config", file)
	}
	cmd.Args = append(cmd.Args, "config", "dump")
	cmd.Dir = "/" // and not that of the process: a program may read files there
	cmd.Env = append(os.Environ(), "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("containerd config dump: %w: %s", err, lines[len(lines)-1])
	}
	return text, nil
}

// API is what containerd is asked: a [node.Node], except in tests.
type API interface {
	Version(ctx context.Context) (string, error)
	// Known calls add with each container, task and sandbox.
	Known(ctx context.Context, add func(namespace, id string)) error
	Close() error
}

// knownTimeout is for the lists of containers: containerd asks each shim for its tasks, one after the other, and waits
// 2 s for one that hangs (plugins/services/tasks/local.go).
const knownTimeout = 30 * time.Second

// askDaemon asks for what only containerd knows.
func (e *Examination) askDaemon(ctx context.Context) {
	e.versionErr, e.knownErr = e.daemonErr, e.daemonErr
	if e.daemonErr != nil {
		return
	}
	api, err := e.Probes.Connect(ctx, node.Config{Address: e.Root.Path(e.Address), Timeout: max(e.Timeout, knownTimeout)})
	if err != nil {
		e.versionErr, e.knownErr = err, err
		return
	}
	defer func() { _ = api.Close() }() // it was only asked
	short, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	e.version, e.versionErr = api.Version(short)
	e.known = leftover.Known{}
	e.knownErr = api.Known(ctx, func(namespace, id string) { e.known[leftover.Name{Namespace: namespace, ID: id}] = true })
	if errors.Is(e.knownErr, context.DeadlineExceeded) {
		e.knownErr = fmt.Errorf("perhaps shims hang: it waits 2 s for each (--timeout gives more): %w", e.knownErr)
	}
}

func connect(ctx context.Context, c node.Config) (API, error) { return node.Open(ctx, c) }
