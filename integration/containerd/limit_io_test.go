// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// diskDir is a directory on a disk whose I/O the kernel can limit.
func diskDir(t *testing.T) string {
	t.Helper()
	file := "/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device"
	if cgroups.Mode() == cgroups.Unified {
		file = "/sys/fs/cgroup/cgroup.controllers"
	}
	if text, err := os.ReadFile(file); err != nil || cgroups.Mode() == cgroups.Unified && !strings.Contains(string(text), "io") {
		lacking(t, "io", "the cgroup controller of I/O")
	}
	dir := publicDir(t)
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(s.Dev), unix.Minor(s.Dev))); err != nil {
		lacking(t, "disk", dir+" on a block device")
	}
	return dir
}

// What a run reads and writes past the page cache takes as long as its limits say, and it is killed at once all the same.
func TestLimit_OfIO(t *testing.T) {
	j := newJudge(t)
	dir := diskDir(t)
	const second = 512 << 10 // bytes
	j.must(os.WriteFile(filepath.Join(dir, "in"), make([]byte, second), 0o644), "file to read")
	disk := oci.WithMounts([]specs.Mount{{Destination: "/disk", Type: "bind", Source: dir, Options: []string{"rbind", "rw"}}})
	const (
		reads  = "dd if=/disk/in of=/dev/null bs=64k iflag=direct"
		writes = "dd if=/dev/zero of=/disk/out bs=64k count=8 oflag=direct"
		large  = "exec dd if=/dev/zero of=/disk/out bs=16M count=1 oflag=direct" // one call, of half a minute
	)
	within := func(v verdict, least, most time.Duration) {
		t.Helper()
		if v.Wall < least || v.Wall > harness.Slow(most) {
			t.Errorf("%s %s: %v, want from %v to %v: %+v", v.Container, v.Exec, v.Wall, least, most, v)
		}
	}
	for id, opt := range map[string]oci.SpecOpts{
		"launcher": disk,
		"fallback": oci.Compose(disk, spec(func(s *oci.Spec) { s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} })),
	} {
		c := j.run(id, config{opts: append(with(j.limited("exec-limits", "wall-time=20s")), opt)}, "sleep", "1000")
		for exec, program := range map[string]string{"reads": reads, "writes": writes} {
			_, v := j.exec(c, exec, []string{fmt.Sprintf("SANDBOX_LIMIT_%s_BPS=%d", strings.ToUpper(strings.TrimSuffix(exec, "s")), second)}, program)
			if v.Status != 0 || v.Limit != "" {
				t.Errorf("%s %s: %+v", id, exec, v)
			}
			within(v, 700*time.Millisecond, 10*time.Second)
		}
		_, v := j.exec(c, "others", []string{"SANDBOX_LIMIT_READ_BPS=4Ki"}, writes)
		within(v, 0, 10*time.Second) // it would be two minutes
		_, v = j.exec(c, "killed", []string{fmt.Sprintf("SANDBOX_LIMIT_WRITE_BPS=%d", second), "SANDBOX_LIMIT_WALL_TIME=300ms"}, large)
		if v.Limit != "wall-time" {
			t.Errorf("%s: verdict on one that is killed: %+v", id, v)
		}
		within(v, 300*time.Millisecond, 10*time.Second)
		if left := c.execCgroups(); len(left) > 0 {
			t.Errorf("cgroups left: %v", left)
		}
		// Neither does init wait for the disk of an exec. It would for half a minute. The exec is killed as well if init
		// dies late.
		j.must(unix.SchedSetAttr(int(c.process.Pid()), &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0), "idle")
		x := j.asExec(c, "with-init", []string{fmt.Sprintf("SANDBOX_LIMIT_WRITE_BPS=%d", second)}, large)
		harness.Eventually(t, "the exec writes", func() error {
			state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", x.Pid()))
			if err == nil && !strings.Contains(string(state), "(dd) D ") {
				err = fmt.Errorf("%s", state)
			}
			return err
		})
		began := time.Now()
		j.must(c.process.Kill(j.ctx, unix.SIGKILL), "kill")
		x.wantExit(137)
		c.wantExit(137)
		if took := time.Since(began); took > harness.Slow(10*time.Second) {
			t.Errorf("%s: it ended %v after it was killed", id, took)
		}
	}
	for id, tt := range map[string]struct{ limits, program, want string }{
		"init-writes": {"wall-time=20s", writes, ""}, "init-killed": {"wall-time=300ms", large, "wall-time"},
	} {
		c := j.run(id, config{opts: append(with(j.limited("limits", fmt.Sprintf("write-bps=%d,%s", second, tt.limits))), disk)}, "sh", "-c", tt.program)
		c.exit()
		v := j.verdict(id, "_init")
		if v.Limit != tt.want {
			t.Errorf("%s: %+v; stderr %q", id, v, c.err)
		}
		within(v, 300*time.Millisecond, 10*time.Second)
		c.process.delete()
	}
}
