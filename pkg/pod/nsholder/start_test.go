// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package nsholder

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

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

// failures are configurations that fail, each at another step.
func failures(t *testing.T) map[string]struct {
	config Config
	want   string
	class  error
} {
	t.Helper()
	file, err := os.Open("/dev/null")
	testx.Must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	with := func(change func(*Config)) Config {
		c := full()
		change(&c)
		return c
	}
	own, err := os.Open("/proc/thread-self/ns/user")
	testx.Must(t, err)
	t.Cleanup(func() { _ = own.Close() })
	return map[string]struct {
		config Config
		want   string
		class  error
	}{
		"a host name that is too long": {
			with(func(c *Config) { c.Hostname = strings.Repeat("a", 65) }), "set the host name: invalid argument",
			unix.EINVAL,
		},
		"no network namespace": {
			with(func(c *Config) { c.Net = file }), "join the network namespace: invalid argument", unix.EINVAL,
		},
		"no user namespace": {
			with(func(c *Config) { c.User = file }), "join the user namespace: invalid argument", unix.EINVAL,
		},
		"its own user namespace": {
			with(func(c *Config) { c.User = own }), "join the user namespace: invalid argument", unix.EINVAL,
		},
		"mappings that overlap": {with(func(c *Config) {
			c.Map = &idmap.Mappings{UIDs: append(mapping, mapping...), GIDs: mapping}
		}), "uid_map", unix.EINVAL},
		"no mapping of groups": {with(func(c *Config) {
			c.Map = &idmap.Mappings{UIDs: mapping, GIDs: []specs.LinuxIDMapping{{}}}
		}), "gid_map", unix.EINVAL},
		"a user that is not mapped": {with(func(c *Config) {
			c.Map, c.UID = &idmap.Mappings{UIDs: mapping, GIDs: mapping}, 65536
		}), "setresuid: invalid argument", unix.EINVAL},
		"a group that is not mapped": {with(func(c *Config) {
			c.Map, c.GID = &idmap.Mappings{UIDs: mapping, GIDs: mapping}, 65536
		}), "setresgid: invalid argument", unix.EINVAL},
		"flags that are none": {with(func(c *Config) { c.Make = 1 }), "make namespaces: invalid argument", unix.EINVAL},
	}
}

func TestStart_LeavesNothingWhenItFails(t *testing.T) {
	for name, test := range failures(t) {
		t.Run(name, func(t *testing.T) {
			before := descriptors(t)
			h, err := Start(t.Context(), test.config, thread, testReaper)
			if err == nil {
				t.Fatalf("Start(%+v) = %d, want an error", test.config, h.Pid())
			}
			if !strings.Contains(err.Error(), test.want) || !errors.Is(err, test.class) {
				t.Errorf("Start = %v, want %q of %v", err, test.want, test.class)
			}
			if pids := children(t); len(pids) > 0 {
				t.Errorf("children %v are left", pids)
			}
			if after := descriptors(t); after > before {
				t.Errorf("descriptors before and after: %d and %d", before, after)
			}
		})
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	testx.Must(t, err)
	return len(files)
}

// A Start takes some milliseconds, so these end it at all of its steps.
func TestStart_LeavesNothingWhenInterrupted(t *testing.T) {
	before := descriptors(t)
	c := full()
	c.Map = &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	failed := 0
	for i := range 150 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*30*time.Microsecond)
		h, err := Start(ctx, c, thread, testReaper)
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

// A program that somebody kills before it is ready is an error, not a wait for ever.
func TestStart_OfAProgramThatIsKilled(t *testing.T) {
	c := full()
	c.Map = &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	ctx, cancel := context.WithCancel(t.Context())
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		for ctx.Err() == nil {
			for _, pid := range children(t) {
				if n, err := strconv.Atoi(pid); err == nil {
					_ = unix.Kill(n, unix.SIGKILL) // dead already is as good
				}
			}
		}
	}()
	failed := 0
	for range 20 {
		h, err := Start(ctx, c, thread, testReaper)
		if err != nil {
			failed++
			continue
		}
		h.Wait()
	}
	cancel()
	<-killed
	t.Logf("%d of 20 failed", failed)
	testx.Eventually(t, "no child is left", func() bool { return len(children(t)) == 0 })
}

func TestHolder_CostsLittle(t *testing.T) {
	h := start(t, full())
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", h.Pid()))
	testx.Must(t, err)
	kilobytes := map[string]int{}
	for line := range strings.Lines(string(data)) {
		var key string
		var n int
		if _, err := fmt.Sscan(line, &key, &n); err == nil {
			kilobytes[key] = n
		}
	}
	t.Logf("RSS %d kB, PSS %d kB", kilobytes["Rss:"], kilobytes["Pss:"])
	if pss := kilobytes["Pss:"]; pss == 0 || pss > 200 {
		t.Errorf("PSS = %d kB, want at most 200", pss)
	}
}
