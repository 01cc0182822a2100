// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	longest     = 4096 // bytes of a message, as with systemd
	mostRights  = 253  // descriptors with one message (unix(7), SCM_MAX_FD)
	rate        = 100  // messages in a second
	logRate     = 5    // lines of the log in logSpan
	logSpan     = 10 * time.Second
	bytesOfAnFD = 4
)

func (r *Receiver) receive(check func(Sender) error) {
	data := make([]byte, longest)
	control := make([]byte, unix.CmsgSpace(unix.SizeofUcred)+unix.CmsgSpace(bytesOfAnFD)+
		unix.CmsgSpace(mostRights*bytesOfAnFD))
	messages, lines := limiter{most: rate, span: time.Second}, limiter{most: logRate, span: logSpan}
	hidden := 0
	say := func(text string, fields map[string]any) {
		if lines.wait(time.Now()) > 0 {
			hidden++
			return
		}
		if hidden > 0 {
			fields["hidden"] = hidden // lines since the last one
		}
		hidden = 0
		r.log(text, fields)
	}
	for {
		n, oob, flags, _, err := r.conn.ReadMsgUnix(data, control)
		if err != nil {
			return // Close closed it; nothing else makes a datagram socket fail
		}
		r.take(data[:n], control[:oob], flags, check, say)
		if wait := messages.wait(time.Now()); wait > 0 {
			select {
			case <-time.After(wait):
			case <-r.closed:
				return
			}
		}
	}
}

// take applies one datagram, and then closes the descriptors that came with it.
func (r *Receiver) take(data, control []byte, flags int, check func(Sender) error, say func(string, map[string]any)) {
	sender, rights := open(control)
	defer func() {
		if sender.PIDFD >= 0 {
			_ = unix.Close(sender.PIDFD) // nothing was written
		}
		for _, fd := range rights { // last, since somebody may wait for this
			_ = unix.Close(fd) // it is not ours, and was not used
		}
	}()
	refuse := func(why any) { say("notify: message refused", map[string]any{"pid": sender.PID, "reason": why}) }
	switch {
	case string(data) == "BARRIER=1":
		return // only its descriptor matters, whoever sent it
	case flags&unix.MSG_TRUNC != 0:
		refuse(fmt.Sprintf("longer than %d bytes", longest))
		return
	case flags&unix.MSG_CTRUNC != 0 || sender.PID <= 0: // 0: of a PID namespace that is not below ours
		refuse("sender unknown")
		return
	}
	if err := check(sender); err != nil {
		refuse(err)
		return
	}
	if !r.apply(data, say) {
		refuse("zero byte in it")
	}
}

// open reads the sender, which the kernel adds to a message, and the descriptors that came with it.
func open(control []byte) (sender Sender, rights []int) {
	sender.PIDFD = -1
	parts, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return sender, nil // only a truncated one cannot be parsed, whose descriptors the kernel closed
	}
	for _, part := range parts {
		if part.Header.Level != unix.SOL_SOCKET || cutOff(part) {
			continue
		}
		switch part.Header.Type {
		case unix.SCM_CREDENTIALS:
			if cred, err := unix.ParseUnixCredentials(&part); err == nil {
				sender.PID = int(cred.Pid)
			}
		case unix.SCM_RIGHTS:
			fds, _ := unix.ParseUnixRights(&part) // it is of that type
			rights = append(rights, fds...)
		case unix.SCM_PIDFD:
			part.Header.Type = unix.SCM_RIGHTS // the same form; a negative number is an error
			if fds, err := unix.ParseUnixRights(&part); err == nil && len(fds) == 1 {
				sender.PIDFD = fds[0]
			}
		}
	}
	return sender, rights
}

// cutOff reports whether a part ends in the middle of what it has. The functions of package unix would panic, or read
// beyond its end. Linux sends none such to a buffer with room for all.
func cutOff(part unix.SocketControlMessage) bool {
	if part.Header.Type == unix.SCM_CREDENTIALS {
		return len(part.Data) < unix.SizeofUcred
	}
	return len(part.Data)%bytesOfAnFD != 0
}

// apply applies a message, and reports whether it is one.
func (r *Receiver) apply(data []byte, say func(string, map[string]any)) bool {
	r.mu.Lock()
	before := r.state
	extend, ok := parse(&r.state, data)
	if extend > 0 {
		if until := time.Now().Add(extend); until.After(r.extension) { // less shortens nothing, as in systemd
			r.extension = until
		}
	}
	now := r.state
	r.mu.Unlock()
	if extend > 0 {
		select {
		case r.extended <- struct{}{}:
		default: // Await has not seen the one before yet
		}
	}
	if now.Ready && !before.Ready {
		close(r.ready)
	}
	if now == before {
		return ok
	}
	const logged = 100 // bytes: with all of each, the log would grow by a gigabyte in a day
	fields := map[string]any{"ready": now.Ready, "status": now.Status[:min(len(now.Status), logged)]}
	if now.Errno != 0 {
		fields["errno"] = fmt.Sprintf("%d (%v)", now.Errno, unix.Errno(now.Errno))
	}
	say("notify", fields)
	return true
}

// limiter allows a number of events in a span of time that begins with the first.
type limiter struct {
	most  int
	span  time.Duration
	began time.Time
	n     int
}

// wait counts one more event and returns how long it has to wait.
func (p *limiter) wait(now time.Time) time.Duration {
	if now.Sub(p.began) >= p.span {
		p.began, p.n = now, 0
	}
	p.n++
	if p.n <= p.most {
		return 0
	}
	return p.began.Add(p.span).Sub(now)
}

// lastErrno is the highest error number of a system call (include/linux/err.h, MAX_ERRNO).
const lastErrno = 4095

// parse applies lines of NAME=VALUE to s. The last one of a name counts; unknown names and values have no effect.
// extend is how long, from now on, the sender asks for at most until it is ready. Like systemd it refuses a zero byte
// except at the end, where some senders have one.
func parse(s *State, data []byte) (extend time.Duration, ok bool) {
	data = bytes.TrimSuffix(data, []byte{0})
	if bytes.IndexByte(data, 0) >= 0 {
		return 0, false
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "READY":
			s.Ready = s.Ready || value == "1"
		case "STATUS":
			s.Status = strings.ToValidUTF8(value, "\uFFFD")
		case "ERRNO":
			if n, err := strconv.Atoi(value); err == nil && n > 0 && n <= lastErrno {
				s.Errno = n
			}
		case "EXTEND_TIMEOUT_USEC":
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				extend = time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond
			}
		}
	}
	return extend, true
}
