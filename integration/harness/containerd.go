// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
)

// Containerd is a containerd that shares nothing with the machine's own: root, state, sockets and the shims' sockets
// are in one directory. One goroutine at a time may use its methods.
type Containerd struct {
	Env     Env
	Version string // without what the maker of the binary added
	Dir     string // everything is below
	Address string // of the gRPC socket
	State   string // bundles are below
	Sockets string // where shims make theirs; a containerd before 2.3 does not tell them
	Fifos   string // where clients should make their fifos

	cmd    *exec.Cmd
	exited <-chan struct{} // closed when the process that cmd started has been waited for
	log    *os.File
}

// NewContainerd makes the directory and the configuration. It starts nothing.
func NewContainerd(env Env) (*Containerd, error) { return NewConfigured(env, (*Containerd).config) }

// NewConfigured is NewContainerd with another configuration than the tests of tasks need.
func NewConfigured(env Env, config func(*Containerd) []byte) (*Containerd, error) {
	version, err := DaemonVersion(env.Daemon)
	if err != nil {
		return nil, err
	}
	// Short, since the path of a socket must fit into 107 bytes and containerd wants 42 or less for the shims'
	// directory. Not below /run, which may be mounted noexec.
	dir, err := os.MkdirTemp("", NamespacePrefix)
	if err != nil {
		return nil, err
	}
	c := &Containerd{
		Env:     env,
		Version: version,
		Dir:     dir,
		Address: filepath.Join(dir, "c.sock"),
		State:   filepath.Join(dir, "state"),
		Sockets: filepath.Join(dir, "s"),
		Fifos:   filepath.Join(dir, "fifo"),
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), config(c), 0o600); err != nil {
		return nil, err
	}
	if err := os.Mkdir(c.Fifos, 0o700); err != nil {
		return nil, err
	}
	c.log, err = os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	return c, err
}

// Start starts containerd and returns when it serves.
func (c *Containerd) Start(ctx context.Context) error {
	cmd := exec.Command(c.Env.Daemon, "--config", filepath.Join(c.Dir, "config.toml"))
	cmd.Env = append([]string{
		"PATH=" + c.Env.Path(), "HOME=" + c.Dir, "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1",
	}, c.Env.Vars...)
	cmd.Dir = c.Dir
	cmd.Stdout, cmd.Stderr = c.log, c.log
	// An interrupt from the terminal is for the test, which then ends containerd. A test that is killed cannot.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	exited, err := Spawn(cmd)
	if err != nil {
		return err
	}
	c.cmd, c.exited = cmd, exited
	var ended error
	err = poll(patience, func() error {
		select {
		case <-c.exited:
			ended = fmt.Errorf("containerd ended: %v", cmd.ProcessState)
			return nil
		default:
		}
		cl, err := c.Client()
		if err != nil {
			return err
		}
		defer func() { _ = cl.Close() }() // it was only asked
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if serving, err := cl.IsServing(ctx); err != nil || !serving {
			return fmt.Errorf("containerd does not serve: %w", errors.Join(err, ctx.Err()))
		}
		return nil
	})
	return errors.Join(err, ended)
}

// Spawn starts a process and waits for it in a goroutine, which then closes exited. How it ended is in
// cmd.ProcessState.
func Spawn(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	started, ended := make(chan error, 1), make(chan struct{})
	go run(cmd, started, ended)
	return ended, <-started
}

// run is the goroutine that owns a process from its start to its end. It keeps its thread, since Pdeathsig is sent when
// the thread that started the process ends, not the test.
func run(cmd *exec.Cmd, started chan<- error, exited chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(exited)
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait()
	}
}

// Client connects to containerd. The connection dials anew after a restart.
func (c *Containerd) Client() (*client.Client, error) {
	return client.New(c.Address, client.WithTimeout(patience))
}

// Pid is the process id of a containerd that was started, or 0.
func (c *Containerd) Pid() int {
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// Stop asks containerd to end, as its service manager does, and returns when it has. Shims go on.
func (c *Containerd) Stop() error { return c.signal(syscall.SIGTERM) }

// Kill ends containerd without warning. Shims go on.
func (c *Containerd) Kill() error { return c.signal(syscall.SIGKILL) }

func (c *Containerd) signal(sig syscall.Signal) error {
	if c.cmd == nil {
		return nil
	}
	if err := c.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-c.exited:
		c.cmd = nil
		return nil
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("containerd, pid %d: does not end after %v", c.cmd.Process.Pid, sig),
			c.cmd.Process.Kill())
	}
}

// Close ends containerd and removes its directory. It returns the errors of both.
func (c *Containerd) Close() error {
	err := c.Stop()
	err = errors.Join(err, unmountBelow(c.Dir), c.log.Close())
	return errors.Join(err, os.RemoveAll(c.Dir))
}

// LogSize returns the length of containerd's log, for LogFrom.
func (c *Containerd) LogSize() int64 {
	info, err := c.log.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// LogFrom returns what containerd and the shims' log fifos have written since the log was size long.
func (c *Containerd) LogFrom(size int64) string {
	text, err := io.ReadAll(io.NewSectionReader(c.log, size, 1<<30))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// DaemonVersion asks a containerd for its version: "1.6.20" of "1.6.20~ds1", say.
func DaemonVersion(binary string) (string, error) {
	out, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", binary, err)
	}
	fields := strings.Fields(string(out)) // containerd <module> <version> <revision>
	if len(fields) < 3 {
		return "", fmt.Errorf("%s --version: %q: no version in it", binary, out)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(fields[2], "v"), "+")
	version, _, _ = strings.Cut(version, "~")
	return version, nil
}

// UnusedPlugins are plugins of containerd 2, in TOML, that no test needs or that would write outside of Dir.
const UnusedPlugins = `
  "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.differ.v1.erofs",
  "io.containerd.mount-handler.v1.erofs", "io.containerd.monitor.container.v1.restart"`

// config leaves out what the tests do not use and what would write outside of Dir.
func (c *Containerd) config() []byte {
	if strings.HasPrefix(c.Version, "1.") {
		return c.config1()
	}
	return fmt.Appendf(nil, `version = 3
root = %q
state = %q
imports = []
disabled_plugins = [%s,
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.nri.v1.nri", "io.containerd.podsandbox.controller.v1.podsandbox",
]
[grpc]
  address = %q
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = %q
[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true
`, filepath.Join(c.Dir, "root"), c.State, UnusedPlugins, c.Address, c.Sockets)
}

// config1 is config for containerd 1.x, where shims choose the directory of their sockets.
func (c *Containerd) config1() []byte {
	return fmt.Appendf(nil, `version = 2
root = %q
state = %q
imports = []
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.restart", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = %q
`, filepath.Join(c.Dir, "root"), c.State, c.Address)
}

// Load imports the test image into the namespace of ctx and unpacks it with the snapshotter whose name it returns:
// overlayfs, or native on machines where overlayfs does not work, inside of a container for instance.
func (c *Containerd) Load(ctx context.Context, cl *client.Client) (client.Image, string, error) {
	snapshotter := "native"
	plugins, err := cl.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id==overlayfs")
	if err != nil {
		return nil, "", err
	}
	for _, p := range plugins.GetPlugins() {
		if p.GetInitErr() == nil {
			snapshotter = p.GetID()
		}
	}
	archive, err := ImageTar(c.Env)
	if err != nil {
		return nil, "", err
	}
	images, err := cl.Import(ctx, archive)
	if err != nil || len(images) != 1 {
		return nil, "", fmt.Errorf("import the test image: %d images: %w", len(images), err)
	}
	image := client.NewImage(cl, images[0])
	return image, snapshotter, image.Unpack(ctx, snapshotter)
}
