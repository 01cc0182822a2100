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

// Message is the content of one datagram, without assignments that have no effect here.
type Message struct {
	Ready  bool
	Status *string       // nil: not in it
	Errno  int           // 0: not in it
	Extend time.Duration // how long from now on the sender wants at most until it is ready; 0: not in it
}

// lastErrno is the highest error number of a system call (include/linux/err.h, MAX_ERRNO).
const lastErrno = 4095

// Parse reads lines of NAME=VALUE. The last of a name counts; unknown names and values have no effect. Like systemd it
// refuses a zero byte except at the end, where some senders have one.
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
