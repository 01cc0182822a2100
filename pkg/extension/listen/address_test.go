// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	inet := netip.MustParseAddrPort
	for text, want := range map[string][]Address{
		"tcp://0.0.0.0:80":          {{Name: "unknown", Type: unix.SOCK_STREAM, Inet: inet("0.0.0.0:80")}},
		"web=tcp://[::1]:80":        {{Name: "web", Type: unix.SOCK_STREAM, Inet: inet("[::1]:80")}},
		" dns=udp://127.0.0.1:53\n": {{Name: "dns", Type: unix.SOCK_DGRAM, Inet: inet("127.0.0.1:53")}},
		"unix:///run/a.sock":        {{Name: "unknown", Type: unix.SOCK_STREAM, Path: "/run/a.sock", Mode: 0o666}},
		"x=unix:///a=b?type=dgram&mode=600 x=unix:///c?type=seqpacket": {
			{Name: "x", Type: unix.SOCK_DGRAM, Path: "/a=b", Mode: 0o600},
			{Name: "x", Type: unix.SOCK_SEQPACKET, Path: "/c", Mode: 0o666},
		},
		"tcp://127.0.0.1:53 udp://127.0.0.1:53 tcp://127.0.0.2:53": {
			{Name: "unknown", Type: unix.SOCK_STREAM, Inet: inet("127.0.0.1:53")},
			{Name: "unknown", Type: unix.SOCK_DGRAM, Inet: inet("127.0.0.1:53")},
			{Name: "unknown", Type: unix.SOCK_STREAM, Inet: inet("127.0.0.2:53")},
		},
	} {
		got, err := Parse(text)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Address{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" || err != nil {
			t.Errorf("Parse(%q) = %v and differs (-want +got):\n%s", text, err, diff)
		}
	}
}

func TestParse_Refuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "0 sockets: must be 1 to 64",
		strings.Repeat("unix:///x ", 65):     "65 sockets: must be 1 to 64",
		":80":                                `":80": must be [NAME=]tcp://IP:PORT`,
		"sctp://1.2.3.4:5":                   "must be [NAME=]tcp://IP:PORT",
		"=tcp://1.2.3.4:5":                   `name "": must be at least`,
		"a:b=tcp://1.2.3.4:5":                `name "a:b": must be`,
		"tcp://localhost:80":                 `"tcp://localhost:80": must be IP:PORT`,
		"tcp://1.2.3.4:65536":                "must be IP:PORT",
		"udp://1.2.3.4:0":                    "must be IP:PORT",
		"tcp://[fe80::1%eth0]:80":            "without a zone",
		"unix://run/x":                       `path "run/x": must be absolute`,
		"unix:///a/../b":                     `path "/a/../b": must be absolute, without elements . or ..`,
		"unix:///" + strings.Repeat("a", 81): "its last element has at most 80 bytes",
		"unix:///a\x00b":                     "must be absolute",
		"unix:///a?type=raw":                 `type "raw": must be stream, dgram or seqpacket`,
		"unix:///a?mode=999":                 `mode "999": must be an octal number up to 0777`,
		"unix:///a?owner=1":                  `"owner": unknown; known are type and mode`,
	} {
		if list, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, %v, want an error with %q", text, list, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a=tcp://1.2.3.4:5 unix:///x?type=dgram&mode=600", "udp://[::]:1", "=://", "unix:///a/../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := Parse(text)
		if err != nil {
			return
		}
		var words []string
		for _, a := range list {
			words = append(words, a.String())
			if (a.Path == "") != a.Inet.IsValid() || a.Path != "" && !strings.HasPrefix(a.Path, "/") || strings.Contains(a.Path+"/", "/../") {
				t.Errorf("Parse(%q) has %+v", text, a)
			}
		}
		again, err := Parse(strings.Join(words, " "))
		if err != nil || len(again) != len(list) {
			t.Errorf("Parse of what Parse(%q) gave = %v, %v", text, again, err)
		}
		vars := map[string]string{}
		env(list, func(name, value string) { vars[name] = value })
		if names := vars["LISTEN_FDNAMES"]; strings.Count(names, ":") != len(list)-1 || strings.ContainsRune(names, 0) {
			t.Errorf("env = %v", vars)
		}
	})
}
