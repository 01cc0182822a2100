// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is a line of /proc/self/mountinfo.
type mount struct {
	point  string
	fstype string
}

// mounts lists the mounts of this process's namespace, the latest last.
func mounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	var list []mount
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, fstype := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(fstype) < 1 {
			return nil, fmt.Errorf("mountinfo: line %q", lines.Text())
		}
		list = append(list, mount{point: fields[4], fstype: fstype[0]})
	}
	return list, lines.Err()
}

// mountsBelow lists the mount points below dir, the latest first. What is mounted at dir itself was there before.
func mountsBelow(dir string) ([]string, error) {
	all, err := mounts()
	var points []string
	for _, m := range all {
		if strings.HasPrefix(m.point, dir+"/") {
			points = append(points, m.point)
		}
	}
	slices.Reverse(points)
	return points, err
}

// unmountBelow detaches everything below dir.
func unmountBelow(dir string) error {
	points, err := mountsBelow(dir)
	for _, point := range points {
		if e := unix.Unmount(point, unix.MNT_DETACH); e != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", point, e))
		}
	}
	return err
}
