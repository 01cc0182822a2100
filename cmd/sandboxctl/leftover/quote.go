// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"regexp"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

var harmless = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// quote quotes a word for a shell: somebody copies the command, and containers choose names of mount points.
func quote(word string) string {
	if harmless.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// umount returns the beginning of a command that unmounts all of them, the last first.
func umount(mounts []*mountinfo.Info) string {
	if len(mounts) == 0 {
		return ""
	}
	words := []string{"umount", "--"}
	for _, m := range slices.Backward(mounts) {
		words = append(words, quote(m.Mountpoint))
	}
	return strings.Join(words, " ") + " && "
}

// points returns the mount points of mounts.
func points(mounts []*mountinfo.Info) (list []string) {
	for _, m := range mounts {
		list = append(list, m.Mountpoint)
	}
	return list
}
