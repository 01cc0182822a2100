// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/internal/testx"
)

// disk is a block device of this machine.
type disk struct {
	major, minor uint32
	name         string // of its node
	dir          string // where its file system is mounted
}

func (d disk) number() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

// mountedDisk finds a block device with a file system to which a test can write.
func mountedDisk(tb testing.TB) disk {
	tb.Helper()
	testx.NeedRoot(tb)
	text, err := os.ReadFile("/proc/self/mountinfo")
	testx.Must(tb, err)
	for line := range strings.Lines(string(text)) {
		// 36 25 254:0 / /disk rw,relatime shared:1 - ext4 /dev/vda rw (proc_pid_mountinfo(5))
		before, after, _ := strings.Cut(line, " - ")
		mount, source := strings.Fields(before), strings.Fields(after)
		var s unix.Stat_t
		if len(mount) < 6 || len(source) < 3 || !strings.HasPrefix(source[1], "/dev/") || !strings.HasPrefix(source[2], "rw") ||
			mount[3] != "/" || !strings.HasPrefix(mount[5], "rw") || unix.Stat(source[1], &s) != nil {
			continue
		}
		d := disk{major: unix.Major(s.Rdev), minor: unix.Minor(s.Rdev), name: source[1], dir: mount[4]}
		if _, err := os.Lstat("/sys/dev/block/" + d.number() + "/partition"); err == nil {
			continue // the kernel counts whole disks
		}
		return d
	}
	testx.Lacking(tb, "disk", "a block device that is mounted whole")
	return disk{}
}

// writes is how a process writes a mebibyte to the disk, past the page cache, and reads half of it.
func (d disk) writes(tb testing.TB) string {
	tb.Helper()
	f, err := os.CreateTemp(d.dir, "shim-test-stats-")
	testx.Must(tb, err)
	tb.Cleanup(func() {
		if err := os.Remove(f.Name()); err != nil {
			tb.Error(err)
		}
	})
	testx.Must(tb, f.Close())
	return fmt.Sprintf("dd if=/dev/zero of=%[1]s bs=64k count=16 oflag=direct 2>&-; "+
		"dd if=%[1]s of=/dev/null bs=64k count=8 iflag=direct 2>&-", f.Name())
}

const mebibyte = 1 << 20

func TestV1_BlockDevicesIncludeNestedCgroups(t *testing.T) {
	parent := makeCgroup(t, hierarchiesV1(t))
	d := mountedDisk(t)
	child := makeCgroup(t, parent)
	// Newer kernels count only where there is a limit; this one is never reached.
	const file = "blkio.throttle.write_bps_device"
	control(t, child["blkio"], file, d.number()+" 1000000000000")
	t.Cleanup(func() { control(t, child["blkio"], file, d.number()+" 0") })
	process(t, child, d.writes(t))
	load, r := loader(t, cgroup.New(child)), open(t, cgroup.New(child))
	below, want := steady(t,
		func() *v1.Metrics { return read[*v1.Metrics](t, r) },
		func() *v1.Metrics { return theirsV1(t, load) })
	if diff := cmp.Diff(want.GetBlkio(), below.GetBlkio(), protocmp.Transform()); diff != "" {
		t.Errorf("I/O (-containerd/cgroups +ours):\n%s", diff)
	}
	above := read[*v1.Metrics](t, open(t, cgroup.New(parent)))
	for name, m := range map[string]*v1.Metrics{"the cgroup": below, "the cgroup above": above} {
		got := make(map[string]uint64)
		for _, e := range m.GetBlkio().GetIoServiceBytesRecursive() {
			if e.GetDevice() == d.name && e.GetMajor() == uint64(d.major) && e.GetMinor() == uint64(d.minor) {
				got[e.GetOp()] = e.GetValue()
			}
		}
		if got["Read"] < mebibyte/2 || got["Write"] < mebibyte || got["Total"] != got["Read"]+got["Write"]+got["Discard"] {
			t.Errorf("bytes of %s: %v, want a mebibyte written, half of it read, and the total, in %v", name, got, m.GetBlkio())
		}
	}
}
