// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
)

// Message is what one datagram tells, of what is understood here. Assignments of other names are left out.
type Message struct {
	Ready  bool
	Status *string       // nil: it does not tell
	Errno  int           // 0: it does not tell
	Extend time.Duration // how long from now on the sender wants at most until it is ready; 0: it does not tell
}

// lastErrno is the highest number that a system call can fail with (include/linux/err.h, MAX_ERRNO).
const lastErrno = 4095

// Parse reads lines of NAME=VALUE, of which the last of a name counts. What is not understood has no effect. Like
// systemd it refuses a zero byte but at the end, which some senders count in.
func Parse(data []byte) (m Message, ok bool) {
	data = bytes.TrimSuffix(data, []byte{0})
	if bytes.IndexByte(data, 0) >= 0 {
		return Message{}, false
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "READY":
			m.Ready = m.Ready || value == "1"
		case "STATUS":
			text := strings.ToValidUTF8(value, "\uFFFD")
			m.Status = &text
		case "ERRNO":
			if n, err := strconv.Atoi(value); err == nil && n > 0 && n <= lastErrno {
				m.Errno = n
			}
		case "EXTEND_TIMEOUT_USEC":
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				m.Extend = time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond
			}
		}
	}
	return m, true
}
