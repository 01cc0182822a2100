// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// held is an exec whose launcher waits in the container, since /etc/passwd is a fifo there, until goOn is called.
func held(t *testing.T, b *box) (pid int, goOn func() outcome) {
	t.Helper()
	ended := make(chan outcome, 1)
	p := command("true")
	p.Cwd = "/tmp" // entered right before
	go func() { ended <- b.outcome(byLauncher, p) }()
	eventually(t, "the launcher in the container", func() bool {
		for _, member := range members(t, b.config) {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", member))
			cwd, cwdErr := os.Readlink(fmt.Sprintf("/proc/%d/cwd", member))
			stat, statErr := os.ReadFile(fmt.Sprintf("/proc/%d/stat", member))
			if errors.Join(err, cwdErr, statErr) == nil && exe == "/memfd:launcher (deleted)" && strings.HasSuffix(cwd, "/tmp") && strings.Contains(string(stat), ") S ") {
				pid = member
			}
		}
		return pid != 0
	})
	return pid, func() outcome {
		passwd, err := os.OpenFile(filepath.Join(b.config.Rootfs, "etc/passwd"), os.O_WRONLY, 0)
		must(t, err)
		must(t, passwd.Close())
		return <-ended
	}
}

func TestWhatTheContainerSeesOfTheLauncher(t *testing.T) {
	b := withProbe(t, func(c *process.Config) {
		inUserNamespace(c)
		c.Spec.Process.Env = append(c.Spec.Process.Env, "HOME=/") // init does not look for it
		passwd := filepath.Join(c.Rootfs, "etc/passwd")
		must(t, os.Remove(passwd))
		must(t, unix.Mkfifo(passwd, 0o644))
		must(t, os.Symlink("busybox", filepath.Join(c.Rootfs, "bin/readlink")))
	})
	pid, goOn := held(t, b)

	var open []string
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	for _, link := range links {
		target, err := os.Readlink(link)
		must(t, err)
		kind, _, _ := strings.Cut(target, ":[")
		open = append(open, filepath.Base(link)+" "+kind)
	}
	slices.Sort(open)
	if want := []string{"0 /dev/null", "1 pipe", "2 pipe", "3 socket"}; !slices.Equal(open, want) {
		t.Errorf("the launcher has %q open in the container, want %q", open, want)
	}

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, ids, _ := strings.Cut(string(status), "NSpid:\t")
	ids, _, _ = strings.Cut(ids, "\n")
	inside := ids[strings.LastIndex(ids, "\t")+1:]
	for _, link := range []string{"exe", "cwd", "root", "fd/3", "ns/mnt"} {
		p := command("readlink", "/proc/"+inside+"/"+link)
		p.Env = append(p.Env, "HOME=/")
		got := b.outcome(byLibcontainer, p)
		if got.Err != "" || got.Status != 1 || got.Stdout[0] != "" {
			t.Errorf("the container's root reads %s of the launcher: %+v, want a refusal", link, got)
		}
	}
	if got := goOn(); got.Status != 0 || got.Err != "" {
		t.Errorf("exec = %+v, want success", got)
	}
}

// What the shim ignores a process of a container does not: the Go runtime of libcontainer's first stage sees to that.
// It leaves SIGHUP and SIGINT as they are, which are not tried, since Go cannot end that it ignores them.
func TestExecWithSignalsThatTheShimIgnores(t *testing.T) {
	ignored := []os.Signal{syscall.SIGUSR1, syscall.SIGPIPE}
	signal.Ignore(ignored...)
	t.Cleanup(func() {
		c := make(chan os.Signal, 1)
		signal.Notify(c, ignored...) // Reset leaves them ignored in the kernel
		signal.Stop(c)
	})
	b := withProbe(t, nil)
	if got := b.wantSame(probed(nil)); got.Status != 7 {
		t.Errorf("libcontainer: %+v, want the probe's status 7", got)
	}
}
