// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

const (
	insideArg = "inside" // first argument of the process in the namespaces; the second is its setup
	// What the process in the namespaces sees of the scratch directory and the tools.
	place   = "/run/conformance"
	address = "/run/c.sock"           // of the suite's containerd
	trusted = place + "/registry.pem" // certificate of the registry
)

// setup is what the process in the namespaces needs to know.
type setup struct {
	Scratch string // directory with run, lib, tmp and bin
	Tools   string // directory
	Busybox string
	Runtime string
	Args    []string // of the suite, its name included
}

// inside is the first process of the namespaces. It prepares them, runs the suite and ends as it ended.
func inside(argument string) error {
	var s setup
	if err := json.Unmarshal([]byte(argument), &s); err != nil {
		return fmt.Errorf("decode setup: %w", err)
	}
	// A descriptor of the caller's, make's job pipe say, would reach the shims, whose descriptors a test counts.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	for _, step := range []func() error{s.mount, harness.LoopbackUp, func() error { return serve(s.Busybox) }} {
		if err := step(); err != nil {
			return err
		}
	}
	pid, err := syscall.ForkExec(filepath.Join(place, "tools", binary), s.Args, &syscall.ProcAttr{
		Dir: "/tmp",
		Env: []string{
			"PATH=" + place + "/bin:" + place + "/tools:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME=/tmp", "TEST_RUNTIME=" + s.Runtime, "SSL_CERT_FILE=" + trusted,
		},
		Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	status, err := reap(pid)
	if err != nil {
		return err
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		return fmt.Errorf("%s: wait status %#x", binary, uint32(status))
	}
	return nil
}

// mount gives the namespaces fresh directories where the suite and containerd write, and an /etc/hosts of their own.
// Everything is gathered below /run first, since what it covers may hold the scratch directory.
func (s setup) mount() error {
	run := filepath.Join(s.Scratch, "run")
	below := func(name string) string { return filepath.Join(run, strings.TrimPrefix(place, "/run"), name) }
	steps := []func() error{
		func() error { return harness.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC) },
		func() error {
			return harness.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
		},
		func() error { return harness.Mount("tmpfs", run, "tmpfs", 0) },
	}
	for name, source := range map[string]string{
		"bin": filepath.Join(s.Scratch, "bin"), "lib": filepath.Join(s.Scratch, "lib"),
		"tmp": filepath.Join(s.Scratch, "tmp"), "tools": s.Tools,
	} {
		steps = append(steps,
			func() error { return os.MkdirAll(below(name), 0o755) },
			func() error { return harness.Mount(source, below(name), "", unix.MS_BIND) })
	}
	const table = "127.0.0.1 localhost " + host + "\n"
	steps = append(steps,
		func() error { return os.WriteFile(below("hosts"), []byte(table), 0o644) },
		func() error { return harness.Mount(run, "/run", "", unix.MS_MOVE) },
		func() error { return harness.Mount(place+"/hosts", "/etc/hosts", "", unix.MS_BIND) },
		func() error { return harness.Mount(place+"/lib", "/var/lib", "", unix.MS_BIND) },
		func() error { return harness.Mount(place+"/tmp", "/tmp", "", unix.MS_BIND) },
		func() error { return os.Chmod("/run", 0o755) },
		func() error { return os.Chmod("/tmp", 0o1777|os.ModeSticky) },
		// As on most machines. It ends here: the mounts are slaves of the machine's.
		func() error { return harness.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC) },
	)
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// reap waits for the suite, and meanwhile for every process whose parent has died, as the first process must.
func reap(suite int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid == suite {
			return status, err
		}
	}
}
