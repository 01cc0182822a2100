// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"strings"
	"testing"
	"time"

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
		{"more time", "EXTEND_TIMEOUT_USEC=1500000", State{Status: "s"}, 1500 * time.Millisecond},
		{
			"more time than there is", "EXTEND_TIMEOUT_USEC=18446744073709551615",
			State{Status: "s"},
			9223372036854775 * time.Microsecond,
		},
		{"time that is none", "EXTEND_TIMEOUT_USEC=-1\nEXTEND_TIMEOUT_USEC=1s", State{Status: "s"}, 0},
		{"other names and garbage", "MAINPID=1\nready=1\n=\n==\n\n READY=1\nREADY=1 ", State{Status: "s"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := State{Status: "s"}
			extend, ok := parse(&got, []byte(tc.text))
			if diff := cmp.Diff(tc.want, got); diff != "" || !ok || extend != tc.extend {
				t.Errorf("parse(%q) = %v, %t, want %v, and differs (-want +got):\n%s", tc.text, extend, ok, tc.extend, diff)
			}
		})
	}
	got := State{Ready: true, Status: "s", Errno: 1}
	if _, ok := parse(&got, []byte("READY=0\nSTATUS=\nERRNO=x")); !ok || got != (State{Ready: true, Errno: 1}) {
		t.Errorf("parse of what changes the status alone = %t, %+v", ok, got)
	}
	got = State{}
	if extend, ok := parse(&got, []byte("READY=1\x00\nREADY=1")); ok || extend != 0 || got != (State{}) {
		t.Errorf("parse of a message with a zero byte = %+v, %v, %t, want nothing and false", got, extend, ok)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"READY=1\nSTATUS=x\nERRNO=2\nEXTEND_TIMEOUT_USEC=3", "\x00", "=", "STATUS=\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s State
		extend, ok := parse(&s, data)
		switch {
		case !ok && (s != State{} || extend != 0):
			t.Errorf("parse(%q) = %+v, %v, refused and yet something", data, s, extend)
		case extend < 0, s.Errno < 0, s.Errno > lastErrno:
			t.Errorf("parse(%q) = %+v, %v, out of range", data, s, extend)
		case s.Ready && !strings.Contains(string(data), "READY=1"):
			t.Errorf("parse(%q) is ready", data)
		}
	})
}
