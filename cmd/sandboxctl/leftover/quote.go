// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"regexp"
	"slices"
	"strings"
)

var harmless = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// quote quotes a word for a shell: somebody copies the command, and containers choose names of mount points.
func quote(word string) string {
	if harmless.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// umount returns the command that unmounts all mount points, the last first.
func umount(mounts []string) string {
	words := []string{"umount", "--"}
	for _, m := range slices.Backward(mounts) {
		words = append(words, quote(m))
	}
	return strings.Join(words, " ")
}
