// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       State // of one that has status s before
		extend     time.Duration
	}{
		{"nothing", "", State{Status: "s"}, 0},
		{"ready", "READY=1", State{Ready: true, Status: "s"}, 0},
		{"another value of ready", "READY=0\nREADY=11\nREADY", State{Status: "s"}, 0},
		{"several lines, one of which ends", "READY=1\nSTATUS=up\n", State{Ready: true, Status: "up"}, 0},
		{"a zero byte at the end", "READY=1\x00", State{Ready: true, Status: "s"}, 0},
		{"an empty status", "STATUS=", State{}, 0},
		{"a status with an equals sign", "STATUS=a=b", State{Status: "a=b"}, 0},
		{"the last status counts", "STATUS=a\nSTATUS=b", State{Status: "b"}, 0},
		{"a status that is not UTF-8", "STATUS=a\xffb", State{Status: "a\uFFFDb"}, 0},
		{"an error number", "ERRNO=2", State{Status: "s", Errno: 2}, 0},
		{"error numbers that there are not", "ERRNO=0\nERRNO=-1\nERRNO=4096\nERRNO=x\nERRNO=", State{Status: "s"}, 0},
		{"more time", "EXTEND_TIMEOUT_USEC=3600000000", State{Status: "s"}, time.Hour},
		{
			"more time than there is", "EXTEND_TIMEOUT_USEC=18446744073709551615",
			State{Status: "s"},
			9223372036854775 * time.Microsecond,
		},
		{"time that is none", "EXTEND_TIMEOUT_USEC=-1\nEXTEND_TIMEOUT_USEC=1s", State{Status: "s"}, 0},
		{"other names and garbage", "MAINPID=1\nready=1\n=\n==\n\n READY=1\nREADY=1 ", State{Status: "s"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, extend := applied(State{Status: "s"}, tc.text)
			if diff := cmp.Diff(tc.want, got); diff != "" || (extend-tc.extend).Abs() > time.Minute {
				t.Errorf("after %q the extension is %v, want %v, and the state differs (-want +got):\n%s", tc.text, extend, tc.extend, diff)
			}
		})
	}
	if got, _ := applied(State{Ready: true, Status: "s", Errno: 1}, "READY=0\nSTATUS=\nERRNO=x"); got != (State{Ready: true, Errno: 1}) {
		t.Errorf("after what changes the status alone: %+v", got)
	}
	if got, extend := applied(State{}, "READY=1\x00\nREADY=1"); extend != 0 || got != (State{}) {
		t.Errorf("after a message with a zero byte: %+v, %v, want nothing", got, extend)
	}
}

// applied returns what a message makes of a state, and how much time it asks for.
func applied(before State, text string) (after State, extend time.Duration) {
	r := &Receiver{state: before, ready: make(chan struct{}), logger: log.L}
	r.apply([]byte(text))
	if !r.extension.IsZero() {
		extend = time.Until(r.extension)
	}
	return r.state, extend
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"READY=1\nSTATUS=x\nERRNO=2\nEXTEND_TIMEOUT_USEC=3", "\x00", "=", "STATUS=\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, extend := applied(State{}, text)
		switch {
		case strings.Contains(strings.TrimSuffix(text, "\x00"), "\x00") && (s != State{} || extend != 0):
			t.Errorf("after %q: %+v, %v, refused and yet something", text, s, extend)
		case extend < -time.Minute, s.Errno < 0, s.Errno > lastErrno:
			t.Errorf("after %q: %+v, %v, out of range", text, s, extend)
		case s.Ready && !strings.Contains(text, "READY=1"):
			t.Errorf("after %q it is ready", text)
		}
	})
}
