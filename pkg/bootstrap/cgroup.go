// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// joinCgroup moves this process into the existing cgroup p, relative to the mount points of every v1 hierarchy, or of
// the unified one where that is all there is. start calls it before it answers, so that containerd hears of a failure.
func joinCgroup(p string) error {
	mounts, err := cgroupMounts("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("join shim cgroup %q: %w", p, err)
	}
	joined := 0
	for _, mount := range mounts {
		// The leading slash keeps ".." below the mount.
		procs := filepath.Join(mount, filepath.Clean("/"+p), "cgroup.procs")
		err := writeFile(procs, "0") // 0 is the writer, with all its threads
		if errors.Is(err, os.ErrNotExist) {
			continue // a group usually exists in some hierarchies only
		}
		if errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("join shim cgroup %q: %w (cpuset.cpus or cpuset.mems is empty)", p, err)
		}
		if err != nil {
			return fmt.Errorf("join shim cgroup %q: %w", p, err)
		}
		joined++
	}
	if joined == 0 {
		return fmt.Errorf("join shim cgroup %q: not in any of %q: %w", p, mounts, errdefs.ErrNotFound)
	}
	return nil
}

// writeFile writes a kernel control file: never created, one write.
func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// cgroupMounts lists one mount point of each v1 hierarchy, or of cgroup2 when there is no v1 hierarchy. Of several
// mounts of a hierarchy the first counts: later ones are binds of parts of it. The format is proc_pid_mountinfo(5).
func cgroupMounts(mountinfo string) ([]string, error) {
	data, err := os.ReadFile(mountinfo)
	if err != nil {
		return nil, err
	}
	var v1, v2 []string
	seen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		head, tail, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		fields := strings.Fields(head)
		kind, _, _ := strings.Cut(tail, " ")
		if !ok || len(fields) < 5 || (kind != "cgroup" && kind != "cgroup2") || seen[fields[2]] {
			continue
		}
		seen[fields[2]] = true // major:minor names the hierarchy
		switch kind {
		case "cgroup":
			v1 = append(v1, unescapeMount(fields[4]))
		case "cgroup2":
			v2 = append(v2, unescapeMount(fields[4]))
		}
	}
	if len(v1) > 0 {
		return v1, nil
	}
	return v2, nil
}

// unescapeMount undoes the octal escapes that the kernel writes for blanks and backslashes in mount points.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
