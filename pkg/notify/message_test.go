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
		want       Message
	}{
		{"nothing", "", Message{}},
		{"ready", "READY=1", Message{Ready: true}},
		{"another value of ready", "READY=0\nREADY=11\nREADY", Message{}},
		{"several lines, one of which ends", "READY=1\nSTATUS=up\n", Message{Ready: true, Status: new("up")}},
		{"a zero byte at the end", "READY=1\x00", Message{Ready: true}},
		{"an empty status", "STATUS=", Message{Status: new("")}},
		{"a status with an equals sign", "STATUS=a=b", Message{Status: new("a=b")}},
		{"the last status counts", "STATUS=a\nSTATUS=b", Message{Status: new("b")}},
		{"a status that is not UTF-8", "STATUS=a\xffb", Message{Status: new("a\uFFFDb")}},
		{"an error number", "ERRNO=2", Message{Errno: 2}},
		{"error numbers that there are not", "ERRNO=0\nERRNO=-1\nERRNO=4096\nERRNO=x\nERRNO=", Message{}},
		{"more time", "EXTEND_TIMEOUT_USEC=1500000", Message{Extend: 1500 * time.Millisecond}},
		{"more time than there is", "EXTEND_TIMEOUT_USEC=18446744073709551615", Message{Extend: 9223372036854775 * time.Microsecond}},
		{"time that is none", "EXTEND_TIMEOUT_USEC=-1\nEXTEND_TIMEOUT_USEC=1s", Message{}},
		{"other names and garbage", "MAINPID=1\nready=1\n=\n==\n\n READY=1\nREADY=1 ", Message{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := Parse([]byte(tc.text))
			if diff := cmp.Diff(tc.want, got); diff != "" || !ok {
				t.Errorf("Parse(%q) is %t and differs (-want +got):\n%s", tc.text, ok, diff)
			}
		})
	}
	if m, ok := Parse([]byte("READY=1\x00\nREADY=1")); ok || m.Ready {
		t.Errorf("Parse of a message with a zero byte = %+v, %t, want nothing and false", m, ok)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"READY=1\nSTATUS=x\nERRNO=2\nEXTEND_TIMEOUT_USEC=3", "\x00", "=", "STATUS=\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, ok := Parse(data)
		switch {
		case !ok && m != (Message{}):
			t.Errorf("Parse(%q) = %+v, refused and yet something", data, m)
		case m.Extend < 0, m.Errno < 0, m.Errno > lastErrno:
			t.Errorf("Parse(%q) = %+v, out of range", data, m)
		case m.Ready && !strings.Contains(string(data), "READY=1"):
			t.Errorf("Parse(%q) is ready", data)
		}
	})
}
