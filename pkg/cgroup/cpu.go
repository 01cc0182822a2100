// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// The files of v1 with a quota of CPU time and its period, both in µs. A quota of -1 is none.
const (
	quotaFile  = "cpu.cfs_quota_us"
	periodFile = "cpu.cfs_period_us"
)

// UsualPeriod is that of a quota for which none is given, in µs: the kernel's default.
const UsualPeriod = 100000

const (
	longestPeriod = 1000000 // kernel/sched/core.c, max_cfs_quota_period
	leastQuota    = 1000    // min_cfs_quota_period
)

// Bandwidth is CPU time, as a quota in a period, both in µs. A quota that is not positive is no limit.
type Bandwidth struct {
	Quota  int64
	Period uint64
}

// less reports whether b allows less than other.
func (b Bandwidth) less(other Bandwidth) bool {
	share := func(b Bandwidth) float64 { return float64(b.Quota) / float64(b.Period) }
	return b.Quota > 0 && (other.Quota <= 0 || share(b) < share(other))
}

// in returns b in another period, or in the longest one if its quota would be less than the kernel allows. It rounds
// down.
func (b Bandwidth) in(period uint64) Bandwidth {
	for _, p := range []uint64{period, longestPeriod} {
		if quota := b.Quota * int64(p) / int64(b.Period); quota >= leastQuota {
			return Bandwidth{quota, p}
		}
	}
	return Bandwidth{leastQuota, longestPeriod}
}

// LimitCPU limits CPU time to so many thousandths of a processor, or to what the cgroups above allow, if that is less.
func (c *Cgroup) LimitCPU(thousandths int64) error {
	b := c.Fit(Bandwidth{thousandths * UsualPeriod / 1000, UsualPeriod})
	if c.unified {
		return c.write("cpu.max", fmt.Sprintf("%d %d", b.Quota, b.Period))
	}
	return errors.Join(c.set(periodFile, int64(b.Period)), c.set(quotaFile, b.Quota))
}

// Fit lowers b to what the cgroups above c allow. Those of v1 allow no child more than they have
// (kernel/sched/core.c, tg_cfs_schedulable_down); on v2 a child with more just does not get it. c need not exist.
func (c *Cgroup) Fit(b Bandwidth) Bandwidth {
	own := c.Path("cpu")
	if c.unified || own == "" {
		return b
	}
	for dir := filepath.Dir(own); dir != "/"; dir = filepath.Dir(dir) {
		if above, err := readBandwidth(dir); err == nil && above.less(b) { // the root of the hierarchy has none
			b = above.in(b.Period)
		}
	}
	return b
}

// FitChildren lowers children of v1 with names that match a pattern of path.Match to b, which c is about to get: it is
// refused while a child has more. The snapshot has what they had, also if there is an error.
func (c *Cgroup) FitChildren(pattern string, b Bandwidth) (Snapshot, error) {
	before := Snapshot{}
	own := c.Path("cpu")
	if c.unified || own == "" {
		return before, nil
	}
	// Where a parent does not allow the period to be written first, the quota is: then it is one of the former period.
	if now, err := readBandwidth(own); err == nil && now.Period > b.Period {
		b.Period = now.Period
	}
	children, err := os.ReadDir(own)
	if err != nil && !IsGone(err) { // what c is about to get will be refused
		return before, err
	}
	for _, child := range children {
		matches, err := path.Match(pattern, child.Name())
		if err == nil && matches {
			err = b.fitChild(filepath.Join(own, child.Name()), before)
		}
		if err != nil && !IsGone(err) { // the exec has ended
			return before, err
		}
	}
	return before, nil
}

func (b Bandwidth) fitChild(dir string, before Snapshot) error {
	has, err := readBandwidth(dir)
	if err != nil || has.Quota <= 0 || !b.less(has) {
		return err
	}
	quota, period := filepath.Join(dir, quotaFile), filepath.Join(dir, periodFile)
	before[quota], before[period] = strconv.FormatInt(has.Quota, 10), strconv.FormatUint(has.Period, 10)
	b = b.in(has.Period) // or in a longer one, which makes less of the quota that is there
	if err := Write(period, strconv.FormatUint(b.Period, 10)); err != nil {
		return err
	}
	return Write(quota, strconv.FormatInt(b.Quota, 10))
}

func readBandwidth(dir string) (b Bandwidth, err error) {
	quota, err := readSettings(filepath.Join(dir, quotaFile))
	if err == nil {
		b.Quota, err = strconv.ParseInt(strings.TrimSpace(quota), 10, 64)
	}
	if err == nil {
		b.Period, err = readNumber(filepath.Join(dir, periodFile), "")
	}
	if err == nil && b.Period == 0 {
		err = fmt.Errorf("%s has a period of 0", dir)
	}
	return b, err
}
