// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
)

// blkioV1 lists the files of the blkio controller. Who counts depends on the kernel: the I/O scheduler BFQ; the
// throttle policy, in newer kernels including nested cgroups, but since Linux 6.10 only for devices with a limit; until
// Linux 5.0 the scheduler CFQ. The last in this order that has numbers counts.
func blkioV1() []source[*v1.Metrics] {
	entries := func(name, older string, of func(*v1.BlkIOStat) *[]*v1.BlkIOEntry) source[*v1.Metrics] {
		return source[*v1.Metrics]{name: name, older: older, parse: func(text []byte, m *v1.Metrics) error {
			list, err := parseBlkio(text)
			if blkio := ensure(&m.Blkio); len(list) > 0 {
				*of(blkio) = list
			}
			return err
		}}
	}
	serviced := func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoServicedRecursive }
	serviceBytes := func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoServiceBytesRecursive }
	return []source[*v1.Metrics]{
		entries("blkio.bfq.io_serviced_recursive", "", serviced),
		entries("blkio.bfq.io_service_bytes_recursive", "", serviceBytes),
		entries("blkio.throttle.io_serviced_recursive", "blkio.throttle.io_serviced", serviced),
		entries("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes", serviceBytes),
		entries("blkio.io_serviced_recursive", "", serviced),
		entries("blkio.io_service_bytes_recursive", "", serviceBytes),
		entries("blkio.io_queued_recursive", "blkio.bfq.io_queued_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoQueuedRecursive }),
		entries("blkio.io_service_time_recursive", "blkio.bfq.io_service_time_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoServiceTimeRecursive }),
		entries("blkio.io_wait_time_recursive", "blkio.bfq.io_wait_time_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoWaitTimeRecursive }),
		entries("blkio.io_merged_recursive", "blkio.bfq.io_merged_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoMergedRecursive }),
		entries("blkio.time_recursive", "blkio.bfq.time_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoTimeRecursive }),
		entries("blkio.sectors_recursive", "blkio.bfq.sectors_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.SectorsRecursive }),
	}
}

// parseBlkio reads lines such as "8:0 Read 12" and, in the files for time and sectors, "8:0 12". The last line is a
// total over the devices, which the message has no place for.
func parseBlkio(text []byte) ([]*v1.BlkIOEntry, error) {
	var entries []*v1.BlkIOEntry
	var last []byte // the device of the line before
	var name string
	for line := range bytes.Lines(text) {
		device, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		major, minor, ok := parseDevice(device)
		if !ok {
			continue
		}
		if !bytes.Equal(device, last) {
			last, name = device, deviceName(string(device))
		}
		op, value, both := bytes.Cut(rest, []byte(" "))
		if !both {
			op, value = nil, rest
		}
		n, err := number(value, 0)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", device, op, err)
		}
		entries = append(entries, &v1.BlkIOEntry{Op: string(op), Device: name, Major: major, Minor: minor, Value: n})
	}
	return entries, nil
}

// deviceName returns the path of a block device's node, as udev names it, or "" if there is none any more. The kernel
// writes a slash in a name as an exclamation mark (sysfs).
func deviceName(device string) string {
	target, err := os.Readlink("/sys/dev/block/" + device)
	if err != nil {
		return ""
	}
	return "/dev/" + strings.ReplaceAll(path.Base(target), "!", "/")
}
