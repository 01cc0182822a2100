// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Address is a requested socket.
type Address struct {
	Name   string         // in LISTEN_FDNAMES
	Type   int            // SOCK_STREAM, SOCK_DGRAM or SOCK_SEQPACKET
	Inet   netip.AddrPort // of TCP and UDP; the zero value for a path
	Path   string         // in the container, absolute; "" for TCP and UDP
	Mode   fs.FileMode    // of Path
	source string
}

// String returns the text that was parsed.
func (a Address) String() string { return a.source }

const (
	most        = 64        // sockets of a container
	defaultName = "unknown" // sd_listen_fds(3) has it for sockets without a name
	longestName = 255       // as above
	longestPath = 107       // of an address (unix(7))
	longestBase = 80        // Bind appends it to the path of a descriptor
	defaultMode = 0o666     // systemd.socket(5), SocketMode
)

// Form describes what Parse reads.
const Form = "[NAME=]tcp://IP:PORT, [NAME=]udp://IP:PORT or " +
	"[NAME=]unix:///PATH[?type=stream|dgram|seqpacket][&mode=OCTAL], with spaces between them"

// Parse reads addresses separated by spaces.
func Parse(text string) ([]Address, error) {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > most {
		return nil, fmt.Errorf("%d sockets: must be 1 to %d: %s", len(words), most, Form)
	}
	list := make([]Address, 0, len(words))
	for _, word := range words {
		a, err := parse(word)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", word, err)
		}
		for _, other := range list {
			if a.Path != "" && a.Path == other.Path || a.Path == "" && a.Type == other.Type && a.Inet == other.Inet {
				return nil, fmt.Errorf("%q: the same address as %q", word, other)
			}
		}
		list = append(list, a)
	}
	return list, nil
}

func parse(word string) (Address, error) {
	a := Address{Name: defaultName, source: word}
	scheme, rest, ok := strings.Cut(word, "://")
	if !ok {
		return a, fmt.Errorf("must be %s", Form)
	}
	if name, after, ok := strings.Cut(scheme, "="); ok {
		a.Name, scheme = name, after
		if !validName(name) {
			return a, fmt.Errorf("name %q: must be 1 to %d printable characters of ASCII without a colon", name, longestName)
		}
	}
	switch scheme {
	case "tcp":
		a.Type = unix.SOCK_STREAM
		return a, a.parseInet(rest)
	case "udp":
		a.Type = unix.SOCK_DGRAM
		return a, a.parseInet(rest)
	case "unix":
		return a, a.parsePath(rest)
	}
	return a, fmt.Errorf("scheme %q: must be tcp, udp or unix", scheme)
}

// validName is systemd's rule, which keeps the list of names parsable.
func validName(name string) bool {
	return name != "" && len(name) <= longestName &&
		!strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' })
}

func (a *Address) parseInet(text string) (err error) {
	a.Inet, err = netip.ParseAddrPort(text)
	switch {
	case err != nil:
		return fmt.Errorf("must be IP:PORT, such as 0.0.0.0:80 or [::1]:80: %w", err)
	case a.Inet.Port() == 0:
		return fmt.Errorf("port 0: must be 1 to 65535")
	case a.Inet.Addr().Zone() != "":
		return fmt.Errorf("zone %q: not supported: use an address without a zone", a.Inet.Addr().Zone())
	}
	return nil
}

func (a *Address) parsePath(text string) error {
	text, query, _ := strings.Cut(text, "?")
	a.Type, a.Mode, a.Path = unix.SOCK_STREAM, defaultMode, text
	switch {
	case !path.IsAbs(text) || path.Clean(text) != text || text == "/":
		return fmt.Errorf("path %q: must be absolute, without elements . or .. and without a slash at the end", text)
	case len(text) > longestPath || len(path.Base(text)) > longestBase || strings.ContainsRune(text, 0):
		return fmt.Errorf("path %q: must have at most %d bytes, its last element at most %d", text, longestPath, longestBase)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	for key, all := range values {
		value := all[len(all)-1]
		switch key {
		case "type":
			types := map[string]int{
				"stream": unix.SOCK_STREAM, "dgram": unix.SOCK_DGRAM, "seqpacket": unix.SOCK_SEQPACKET,
			}
			if a.Type = types[value]; a.Type == 0 {
				return fmt.Errorf("type %q: must be stream, dgram or seqpacket", value)
			}
		case "mode":
			mode, err := strconv.ParseUint(value, 8, 32)
			if err != nil || mode > 0o777 {
				return fmt.Errorf("mode %q: must be an octal number up to 0777", value)
			}
			a.Mode = fs.FileMode(mode)
		default:
			return fmt.Errorf("%q: unknown; known are type and mode", key)
		}
	}
	return nil
}

// env calls set with the environment variables that describe the sockets to the program (sd_listen_fds(3)).
func env(list []Address, set func(name, value string)) {
	var names []string
	for _, a := range list {
		names = append(names, a.Name)
	}
	set("LISTEN_FDNAMES", strings.Join(names, ":"))
	set("LISTEN_FDS", strconv.Itoa(len(list)))
	set("LISTEN_PID", "1")
}
