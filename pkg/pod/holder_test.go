// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

func TestHolder_WithoutAPIDNamespaceStaysInTheShims(t *testing.T) {
	h := hold(t, holderConfig{Make: unix.CLONE_NEWIPC, UID: 1, GID: 2})
	for _, name := range []string{"pid", "net", "uts", "user"} {
		if got, own := namespace(t, strconv.Itoa(h.Pid()), name), namespace(t, "thread-self", name); got != own {
			t.Errorf("%s namespace = %s, want that of the shim, %s", name, got, own)
		}
	}
	// Nothing but SIGKILL ends it.
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGCHLD} {
		testx.Must(t, unix.Kill(h.Pid(), signal))
	}
	testx.Eventually(t, "it sleeps after the signals", func() bool { return status(t, h.Pid(), "State") == "S (sleeping)" })
}

func TestHolder_HasNoPrivileges(t *testing.T) {
	root := full()
	root.UID, root.GID = 0, 0 // whom the kernel takes nothing from by itself
	for id, config := range map[string]holderConfig{"65535": full(), "0": root} {
		h := hold(t, config)
		ids := strings.Join([]string{id, id, id, id}, "\t")
		for key, want := range map[string]string{
			"Name": "sandbox-init", "Threads": "1", "NoNewPrivs": "1", "Groups": "", "Uid": ids, "Gid": ids,
			"CapInh": "0000000000000000", "CapPrm": "0000000000000000",
			"CapEff": "0000000000000000", "CapAmb": "0000000000000000", "CapBnd": "0000000000000000", "Seccomp": "2",
			"SigBlk": "fffffffffffbfeff", // all but SIGKILL and SIGSTOP
		} {
			if got := status(t, h.Pid(), key); got != want {
				t.Errorf("user %s: %s = %q, want %q", id, key, got, want)
			}
		}
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", h.Pid()))
		if line := regexp.MustCompile(`(?s)Max cpu time +10 +10 +seconds.*Max stack size +65536 +65536 +bytes`); !line.Match(limits) {
			t.Errorf("user %s: limits = %s, %v, want a CPU time of 10 s, and a stack of 64 KiB", id, limits, err)
		}
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.Pid()))
		if err != nil || len(fds) != 0 {
			t.Errorf("user %s: descriptors = %v, %v, want none", id, fds, err)
		}
	}
}

// What is called /proc/1/root in the pod leads to nothing, nor does the mount namespace.
func TestHolder_HasAnEmptyRoot(t *testing.T) {
	h := hold(t, full())
	root := fmt.Sprintf("/proc/%d/root/", h.Pid())
	for _, path := range []string{root, root + "..", root + "../..", fmt.Sprintf("/proc/%d/cwd/..", h.Pid())} {
		entries, err := os.ReadDir(path)
		if err != nil || len(entries) != 0 {
			t.Errorf("ReadDir(%s) = %v, %v, want nothing", path, entries, err)
		}
	}
	if err := os.WriteFile(root+"file", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to the root = %v, want %v", err, unix.EROFS)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.Pid()))
	if err != nil || strings.Count(string(mounts), "\n") != 1 {
		t.Errorf("mounts = %q, %v, want one", mounts, err)
	}
}

// A process in the pod with the holder's user may not look into it, and one with all capabilities in the pod's user
// namespace may not either.
func TestHolder_CannotBeTraced(t *testing.T) {
	user := full()
	user.Map = &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	root := full()
	root.UID, root.GID = 0, 0
	for name, test := range map[string]struct {
		config holderConfig
		flags  []string
	}{
		"by its own user":                  {full(), []string{"-p", "-S", "65535", "-G", "65535"}},
		"by root without capabilities":     {root, []string{"-p", "setpriv", "--bounding-set", "-all", "--inh-caps", "-all"}},
		"by the root of a user namespace":  {user, []string{"-U", "-p", "-S", "0", "-G", "0"}},
		"by its own user of one in a user": {user, []string{"-U", "-p", "-S", "65535", "-G", "65535"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := hold(t, test.config)
			for _, file := range []string{"root", "cwd", "exe", "ns/mnt"} {
				path := fmt.Sprintf("/proc/%d/%s", h.Pid(), file)
				// Linux 5.10 refuses to follow ns/mnt, and reads it as an empty text.
				if out, err := tryIn(t, h.Pid(), test.flags, "readlink", path); err == nil && strings.TrimSpace(out) != "" {
					t.Errorf("readlink %s = %q, want an error", path, out)
				}
			}
		})
	}
}

func TestHolder_MakesAUserNamespace(t *testing.T) {
	c := full()
	c.Map = &idmap.Mappings{
		UIDs: []specs.LinuxIDMapping{
			{ContainerID: 0, HostID: 200000, Size: 1000}, {ContainerID: 2000, HostID: 300000, Size: 10},
		},
		GIDs: []specs.LinuxIDMapping{{ContainerID: 0, HostID: 400000, Size: 1000}},
	}
	c.UID, c.GID = 2009, 999
	h := hold(t, c)
	if got, own := namespace(t, strconv.Itoa(h.Pid()), "user"), namespace(t, "thread-self", "user"); got == own {
		t.Errorf("user namespace = %s, that of the shim", got)
	}
	for file, want := range map[string]string{"uid_map": "0 200000 1000 2000 300000 10", "gid_map": "0 400000 1000"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", h.Pid(), file))
		if got := strings.Join(strings.Fields(string(data)), " "); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", file, got, err, want)
		}
	}
	if got := status(t, h.Pid(), "Uid"); got != "300009\t300009\t300009\t300009" {
		t.Errorf("Uid = %q, want 300009", got)
	}
	if got := status(t, h.Pid(), "Gid"); got != "400999\t400999\t400999\t400999" {
		t.Errorf("Gid = %q, want 400999", got)
	}
	// The namespaces belong to the user namespace: its root may change them, and mount a /proc.
	in(t, h.Pid(), []string{"-U", "-u", "-p", "-i", "-n", "-S", "0", "-G", "0"}, "busybox", "hostname", "changed")
	if got := in(t, h.Pid(), []string{"-u"}, "busybox", "hostname"); got != "changed" {
		t.Errorf("host name = %q, want changed", got)
	}
}

func TestKill_EndsThePIDNamespace(t *testing.T) {
	h := hold(t, full())
	read, write, err := os.Pipe()
	testx.Must(t, err)
	defer read.Close()
	release := testReaper.Suspend()
	cmd := exec.CommandContext(t.Context(), "nsenter", "-t", strconv.Itoa(h.Pid()), "-p", "cat")
	cmd.Stdin = read // never ends by itself
	testx.Must(t, cmd.Start())
	testx.Eventually(t, "cat is in the namespace", func() bool { return len(members(t, h.Pid())) == 2 })
	testx.Must(t, h.Kill(t.Context()))
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("cat ended with %v, want killed", err)
	}
	release()
	_ = write.Close() // cat is gone
	if status, at := h.Wait(); status != 137 || at.IsZero() {
		t.Errorf("Wait() = %d at %v, want 137 at a time", status, at)
	}
}

// members are the processes in pid's PID namespace.
func members(t *testing.T, pid int) (all []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	testx.Must(t, err)
	want := namespace(t, strconv.Itoa(pid), "pid")
	for _, e := range entries {
		if link, err := os.Readlink("/proc/" + e.Name() + "/ns/pid"); err == nil && link == want {
			all = append(all, e.Name())
		}
	}
	return all
}

func TestWait_OfAHolderThatSomebodyKilled(t *testing.T) {
	h := hold(t, full())
	for range 50 { // the testReaper would take the status of some
		testx.Must(t, unix.Kill(h.Pid(), unix.SIGKILL))
		if status, at := h.Wait(); status != 137 || at.IsZero() {
			t.Errorf("Wait() = %d at %v, want 137 at a time", status, at)
		}
		h = hold(t, full())
	}
	for range 2 {
		if err := h.Kill(context.Background()); err != nil {
			t.Errorf("Kill of a dead holder = %v", err)
		}
	}
}

// status is the value of a line of /proc/PID/status.
func status(t *testing.T, pid int, key string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	testx.Must(t, err)
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no %s in the status of process %d", key, pid)
	return ""
}

func TestHolder_DiesWithTheShim(t *testing.T) {
	release := testReaper.Suspend() // the orphan is for us to see
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), asShimEnv+"=1")
	cmd.Stderr = t.Output()
	stdout, err := cmd.StdoutPipe()
	testx.Must(t, err)
	testx.Must(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	testx.Must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	testx.Must(t, err)
	if got := status(t, pid, "PPid"); got != strconv.Itoa(cmd.Process.Pid) {
		t.Errorf("PPid = %s, want the shim, %d", got, cmd.Process.Pid)
	}
	// Not the test's: its threads come and go.
	testx.Must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("the shim ended with success, want killed")
	}
	release()
	testx.Eventually(t, "the holder is gone", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
}

// Each of these fails at another step.
func TestStart_LeavesNothingWhenItFails(t *testing.T) {
	file, err := os.Open("/dev/null")
	testx.Must(t, err)
	defer file.Close()
	own, err := os.Open("/proc/thread-self/ns/user")
	testx.Must(t, err)
	defer own.Close()
	user := &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	for name, test := range map[string]struct {
		change func(*holderConfig)
		want   string
	}{
		"a long host name":           {func(c *holderConfig) { c.Hostname = strings.Repeat("a", 65) }, "set the host name: invalid argument"},
		"no network namespace":       {func(c *holderConfig) { c.Net = file }, "join the network namespace: invalid argument"},
		"no user namespace":          {func(c *holderConfig) { c.User = file }, "join the user namespace: invalid argument"},
		"its own user namespace":     {func(c *holderConfig) { c.User = own }, "join the user namespace: invalid argument"},
		"mappings that overlap":      {func(c *holderConfig) { c.Map = &idmap.Mappings{UIDs: append(mapping, mapping...), GIDs: mapping} }, "uid_map"},
		"no mapping of groups":       {func(c *holderConfig) { c.Map = &idmap.Mappings{UIDs: mapping, GIDs: []specs.LinuxIDMapping{{}}} }, "gid_map"},
		"a user that is not mapped":  {func(c *holderConfig) { c.Map, c.UID = user, 65536 }, "setresuid: invalid argument"},
		"a group that is not mapped": {func(c *holderConfig) { c.Map, c.GID = user, 65536 }, "setresgid: invalid argument"},
		"flags that are none":        {func(c *holderConfig) { c.Make = 1 }, "make namespaces: invalid argument"},
	} {
		t.Run(name, func(t *testing.T) {
			before := descriptors(t)
			c := full()
			test.change(&c)
			_, err := startHolder(t.Context(), c, thread, testReaper)
			testx.WantError(t, err, unix.EINVAL, test.want)
			if pids := children(t); len(pids) > 0 {
				t.Errorf("children %v are left", pids)
			}
			if after := descriptors(t); after > before {
				t.Errorf("descriptors before and after: %d and %d", before, after)
			}
		})
	}
}

// A Start takes some milliseconds, so these end it at all of its steps.
func TestStart_LeavesNothingWhenInterrupted(t *testing.T) {
	before := descriptors(t)
	c := full()
	c.Map = &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	failed := 0
	for i := range 150 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*30*time.Microsecond)
		h, err := startHolder(ctx, c, thread, testReaper)
		switch {
		case err == nil:
			err = h.Kill(t.Context())
		case errors.Is(err, context.DeadlineExceeded):
			failed++
			err = nil
		}
		cancel()
		testx.Must(t, err)
	}
	t.Logf("%d of 150 were interrupted", failed)
	testx.Eventually(t, "no child is left", func() bool { return len(children(t)) == 0 })
	if after := descriptors(t); after > before {
		t.Errorf("descriptors before and after: %d and %d", before, after)
	}
}

// full is a holder with all that needs no other.
func full() holderConfig {
	return holderConfig{
		Make: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, PID: true, Hostname: "pod", UID: 65535, GID: 65535,
	}
}

// hold starts a holder that the test ends, and looks for what is left.
func hold(t *testing.T, c holderConfig) *holder {
	t.Helper()
	h, err := startHolder(t.Context(), c, thread, testReaper)
	testx.Must(t, err)
	t.Cleanup(func() {
		if err := h.Kill(context.Background()); err != nil {
			t.Error(err)
		}
		if slices.Contains(children(t), strconv.Itoa(h.Pid())) {
			t.Errorf("process %d is left", h.Pid())
		}
	})
	return h
}

// in runs a command in namespaces of the process.
func in(t *testing.T, pid int, flags []string, args ...string) string {
	t.Helper()
	out, err := tryIn(t, pid, flags, args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}

func tryIn(t *testing.T, pid int, flags []string, args ...string) (string, error) {
	t.Helper()
	defer testReaper.Suspend()()
	cmd := exec.CommandContext(t.Context(), "nsenter", slices.Concat([]string{"-t", strconv.Itoa(pid)}, flags, args)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}
