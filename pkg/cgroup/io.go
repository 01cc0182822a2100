// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// Disk is the number of a block device.
type Disk struct{ Major, Minor int64 }

func (d Disk) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Disks returns the block devices of this machine that have a size: whole disks, as the kernel limits no partition.
func Disks() (disks []Disk) {
	dirs, _ := filepath.Glob("/sys/block/*") // the pattern is right
	for _, dir := range dirs {
		number, _ := os.ReadFile(filepath.Join(dir, "dev")) // one of several ways to an NVMe disk has none
		var d Disk
		_, err := fmt.Sscanf(string(number), "%d:%d", &d.Major, &d.Minor)
		if size, sizeErr := readNumber(filepath.Join(dir, "size"), ""); err == nil && sizeErr == nil && size > 0 {
			disks = append(disks, d)
		}
	}
	return disks
}

// IOController returns the name of the controller of I/O.
func (c *Cgroup) IOController() string {
	if c.unified {
		return "io"
	}
	return "blkio"
}

// ioFiles returns the files with limits of I/O, one disk a line: of bytes read, of bytes written, and on v1 of
// operations.
func (c *Cgroup) ioFiles() []string {
	if c.unified {
		return []string{"io.max"}
	}
	const name = "blkio.throttle."
	return []string{
		name + "read_bps_device", name + "write_bps_device", name + "read_iops_device", name + "write_iops_device",
	}
}

// LimitIO limits what is read from each disk and what is written to it, in bytes per second; 0 is no limit. On v1 the
// limits of parent do not apply to its children (block/blk-throttle.c, throtl_pd_init), so c gets those that parent has
// now.
func (c *Cgroup) LimitIO(parent *Cgroup, read, written int64) error {
	disks := Disks()
	var errs []error
	for i, file := range c.ioFiles() {
		if c.unified {
			for _, d := range disks {
				line := fmt.Sprintf("%s rbps=%d wbps=%d", d, read, written)
				errs = append(errs, c.limitDisk(file, strings.ReplaceAll(line, "=0", "=max")))
			}
			continue
		}
		text, _ := os.ReadFile(parent.File(file)) // if it is not there, that of c is not either
		for line := range strings.Lines(string(text)) {
			errs = append(errs, c.limitDisk(file, strings.TrimSpace(line)))
		}
		for _, d := range disks {
			rate := []int64{read, written, 0, 0}[i]
			if n, err := numberOf(text, d.String()); err == nil && n < uint64(rate) {
				continue
			}
			if rate > 0 {
				errs = append(errs, c.limitDisk(file, fmt.Sprint(d, rate)))
			}
		}
	}
	return errors.Join(errs...)
}

// limitDisk writes the limits of a disk, which may be gone.
func (c *Cgroup) limitDisk(file, line string) error {
	if err := c.write(file, line); !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

// LiftIO removes the limits of I/O of the cgroup and of those below it. A killed process does not end before everything
// that it had asked for is read and written. An error is only logged, so that no kill fails because of it.
func (c *Cgroup) LiftIO() {
	files := c.ioFiles()
	path := c.File(files[0])
	if path == "" {
		return
	}
	err := walk(filepath.Dir(path), func(n node) error {
		for _, file := range files {
			if err := n.liftIO(file); err != nil && !IsGone(err) {
				return err
			}
		}
		return nil
	}, nil)
	if err != nil && !IsGone(err) {
		entry := log.L.WithError(err).WithField("cgroup", c.String())
		entry.Warn("limits of I/O stay: what is killed may wait for a disk")
	}
}

func (n node) liftIO(file string) error {
	text, err := n.read(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		f, err := n.open(file, unix.O_WRONLY)
		if err != nil {
			return err
		}
		_, err = f.WriteString(reset(file, deviceOf(line), line))
		_ = f.Close()                   // closing a control file cannot fail
		if err != nil && !IsGone(err) { // a disk that has gone
			return err
		}
	}
	return nil
}
