// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// aDisk is one of this machine.
func aDisk(t *testing.T) Disk {
	t.Helper()
	disks := Disks()
	if len(disks) == 0 {
		lacking(t, "disk", "a block device")
	}
	for _, d := range disks {
		if !exists(filepath.Join("/sys/dev/block", d.String(), "queue")) {
			t.Errorf("%s is no disk", d)
		}
	}
	return disks[0]
}

// A child has the lower of its own limits and of those of the cgroup above, until they are lifted.
func TestLimitIO_OnV1(t *testing.T) {
	c, d := makeV1(t), aDisk(t)
	c = make1(t, map[string]string{"blkio": strings.Replace(c.Path("pids"), "/pids/", "/blkio/", 1)})
	for i, rate := range []int{5000, 0, 0, 7} {
		setControl(t, c.File(c.ioFiles()[i]), fmt.Sprintf("%s %d", d, rate))
	}
	for _, tt := range []struct {
		read, written int64
		want          [4]int64
	}{
		{4096, 8192, [4]int64{4096, 8192, 0, 7}},
		{8192, 0, [4]int64{5000, 0, 0, 7}},
	} {
		child, err := c.MakeChild(fmt.Sprint("r", tt.read), c.IOController())
		if err != nil {
			t.Fatal(err)
		}
		if err := child.LimitIO(c, tt.read, tt.written); err != nil {
			t.Fatal(err)
		}
		has := func() (rates [4]int64) {
			for i, file := range child.ioFiles() {
				_, _ = fmt.Sscanf(control(t, child, file), d.String()+" %d", &rates[i]) // nothing is 0
			}
			return rates
		}
		if got := has(); got != tt.want {
			t.Errorf("LimitIO(%d, %d): %v, want %v", tt.read, tt.written, got, tt.want)
		}
		child.LiftIO()
		if got := has(); got != [4]int64{} {
			t.Errorf("LiftIO leaves %v", got)
		}
	}
}

func TestLimitIO_OnV2(t *testing.T) {
	d := aDisk(t)
	c := New(map[string]string{"": t.TempDir()})
	if cgroups.Mode() == cgroups.Unified {
		setControl(t, "/sys/fs/cgroup/cgroup.subtree_control", "+io")
		c = makeV2(t)
	} else { // without a kernel the file has what was written last
		put(t, c.File("io.max"), "")
	}
	if err := c.LimitIO(nil, 4096, 0); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(c.File("io.max"))
	if want := "rbps=4096 wbps=max"; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("io.max = %q, %v, want %s %s", text, err, d, want)
	}
	c.LiftIO()
	if text, err = os.ReadFile(c.File("io.max")); err != nil || strings.Contains(string(text), "4096") {
		t.Errorf("io.max = %q, %v after LiftIO", text, err)
	}
}

// Where there is no cgroup.kill. A process whose limits are lifted goes on.
func TestKill_SignalsBeforeItLiftsLimitsOfIO(t *testing.T) {
	dir := t.TempDir()
	limits, procs := filepath.Join(dir, "io.max"), filepath.Join(dir, "cgroup.procs")
	if err := unix.Mkfifo(limits, 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	put(t, procs, fmt.Sprintln(child.Process.Pid))
	put(t, filepath.Join(dir, "cgroup.freeze"), "0\n")
	put(t, filepath.Join(dir, "cgroup.events"), "frozen 1\n")
	killed := make(chan error, 1)
	go func() { killed <- New(map[string]string{"": dir}).Kill(t.Context(), syscall.SIGKILL) }()
	lifts, err := os.OpenFile(limits, os.O_WRONLY, 0) // waits until the limits are read
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = child.Wait() // killed
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the limits are lifted, and no process was killed")
		_ = child.Process.Kill()
	}
	put(t, procs, "")
	if err := lifts.Close(); err != nil {
		t.Error(err)
	}
	if err := <-killed; err != nil {
		t.Error(err)
	}
	<-ended
}

// On v1 nothing else would kill them.
func TestKill_GoesOnWhereLimitsOfIOCannotBeLifted(t *testing.T) {
	c := makeV1(t)
	dir := t.TempDir()
	put(t, filepath.Join(dir, "cgroup.procs"), "")
	if err := os.Mkdir(filepath.Join(dir, "blkio.throttle.read_bps_device"), 0o700); err != nil { // reading it fails
		t.Fatal(err)
	}
	paths := map[string]string{"pids": c.Path("pids"), "freezer": c.Path("freezer"), "blkio": dir}
	p := start(t, c, "sleep 1000")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := New(paths).Kill(ctx, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	<-p.ended
}
