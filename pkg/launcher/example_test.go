// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher"
	"sandbox.internal/shim/pkg/launcher/native"
)

// A program runs in a root file system and namespaces of its own, and another one joins it there. It needs root, and a
// static busybox.
func Example() {
	if err := run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// init: process 1 of inside
	// exec: in inside
	// exec ended with 7
	// init ended with -1: signal: killed
}

func run(ctx context.Context) error {
	root, err := makeRoot()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(root) }()

	// Nobody else in this program waits for children that the launcher has started.
	l, err := launcher.New("launcher-example", native.NoOthers{})
	if err != nil {
		return err
	}
	defer l.Close()

	shell := func(script string) launcher.Process {
		return launcher.Process{
			Args: []string{"sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/",
			Stdio: [3]*os.File{nil, os.Stdout, os.Stdout},
		}
	}
	reached, arrives, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reached.Close()
	container := &launcher.Container{
		Process: shell(`echo "init: process $$ of $(hostname)"; echo >&2; sleep 1000`),
		Root:    root,
		Namespaces: []launcher.Namespace{
			{Type: unix.CLONE_NEWNS}, {Type: unix.CLONE_NEWPID}, {Type: unix.CLONE_NEWUTS}, {Type: unix.CLONE_NEWIPC},
		},
		Hostname: "inside",
		Mounts: []*launcher.Mount{
			{Type: "proc", Source: "proc", Destination: "/proc", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/dev", Flags: unix.MS_NOSUID, Data: "mode=755"},
		},
		Devices: []*launcher.Device{{Path: "/dev/null", Type: 'c', Major: 1, Minor: 3, Mode: 0o666}},
	}
	container.Stdio[2] = arrives
	if reason := container.Unsupported(); reason != "" {
		return fmt.Errorf("not on this machine: %s", reason)
	}
	init, err := l.Create(ctx, container)
	if err != nil {
		return err
	}
	defer init.Close()
	_ = arrives.Close() // init has its own

	// The container is complete. Init waits until it may run its program.
	if err := init.Resume(); err != nil {
		return err
	}
	if _, err := reached.Read(make([]byte, 1)); err != nil { // until init has said its line
		return err
	}

	pidfd, err := unix.PidfdOpen(init.Pid, 0)
	if err != nil {
		return err
	}
	target := os.NewFile(uintptr(pidfd), "pidfd")
	defer target.Close()
	exec := shell(`echo "exec: in $(hostname)"; exit 7`)
	exec.Target, exec.Join = target, unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC
	process, err := l.Exec(ctx, &exec)
	if err != nil {
		return err
	}
	state, err := process.Wait()
	if err != nil {
		return err
	}
	fmt.Println("exec ended with", state.ExitCode())

	if err := init.Kill(); err != nil { // and all of its PID namespace
		return err
	}
	if state, err = init.Wait(); err != nil {
		return err
	}
	fmt.Printf("init ended with %d: %s\n", state.ExitCode(), state)
	return nil
}

// makeRoot makes a root file system with busybox.
func makeRoot() (string, error) {
	root, err := os.MkdirTemp("", "root")
	if err != nil {
		return "", err
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"sh", "sleep", "hostname"} {
		if err := os.WriteFile(filepath.Join(bin, name), busybox, 0o755); err != nil { //nolint:gosec // a program
			return "", err
		}
	}
	return root, nil
}
