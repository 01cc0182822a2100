// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"fmt"
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
	Mode   uint32         // of Path
	source string
}

// String returns the text of the setting.
func (a Address) String() string { return a.source }

const (
	most        = 64        // sockets of a container
	defaultName = "unknown" // sd_listen_fds(3) has it for sockets without a name
	longestBase = 80        // of a path: Bind appends it to the path of a descriptor (unix(7))
	defaultMode = 0o666     // systemd.socket(5), SocketMode
)

var types = map[string]int{"stream": unix.SOCK_STREAM, "dgram": unix.SOCK_DGRAM, "seqpacket": unix.SOCK_SEQPACKET}

// Form describes what Parse reads.
const Form = "[NAME=]tcp://IP:PORT, [NAME=]udp://IP:PORT or " +
	"[NAME=]unix:///PATH[?type=stream|dgram|seqpacket][&mode=OCTAL], with spaces between them"

// Parse reads addresses separated by spaces.
func Parse(text string) ([]Address, error) {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > most {
		return nil, fmt.Errorf("%d sockets: must be 1 to %d: %s", len(words), most, Form)
	}
	list := make([]Address, len(words))
	for i, word := range words {
		var err error
		if list[i], err = parse(word); err != nil {
			return nil, fmt.Errorf("%q: %w", word, err)
		}
	}
	return list, nil
}

func parse(word string) (Address, error) {
	a := Address{Name: defaultName, source: word}
	scheme, rest, _ := strings.Cut(word, "://")
	if name, after, ok := strings.Cut(scheme, "="); ok {
		a.Name, scheme = name, after
		if name == "" || strings.Contains(name, ":") { // which separates names
			return a, fmt.Errorf("name %q: must be at least one character, without a colon", name)
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
		a.Type, a.Mode = unix.SOCK_STREAM, defaultMode
		return a, a.parsePath(rest)
	}
	return a, fmt.Errorf("must be %s", Form)
}

func (a *Address) parseInet(text string) (err error) {
	a.Inet, err = netip.ParseAddrPort(text)
	if err != nil || a.Inet.Port() == 0 || a.Inet.Addr().Zone() != "" {
		return fmt.Errorf("must be IP:PORT, such as 0.0.0.0:80 or [::1]:80, without a zone")
	}
	return nil
}

func (a *Address) parsePath(text string) error {
	text, query, _ := strings.Cut(text, "?")
	a.Path = text
	if !path.IsAbs(text) || path.Clean(text) != text || text == "/" || strings.ContainsRune(text, 0) ||
		len(path.Base(text)) > longestBase {
		return fmt.Errorf("path %q: must be absolute, without elements . or .. and without a slash at the end; "+
			"its last element has at most %d bytes", text, longestBase)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	for key := range values {
		value := values.Get(key)
		switch key {
		case "type":
			if a.Type = types[value]; a.Type == 0 {
				return fmt.Errorf("type %q: must be stream, dgram or seqpacket", value)
			}
		case "mode":
			mode, err := strconv.ParseUint(value, 8, 32)
			if err != nil || mode > 0o777 {
				return fmt.Errorf("mode %q: must be an octal number up to 0777", value)
			}
			a.Mode = uint32(mode)
		default:
			return fmt.Errorf("%q: unknown; known are type and mode", key)
		}
	}
	return nil
}

// env sets the environment variables of sd_listen_fds(3).
func env(list []Address, set func(name, value string)) {
	var names []string
	for _, a := range list {
		names = append(names, a.Name)
	}
	set("LISTEN_FDNAMES", strings.Join(names, ":"))
	set("LISTEN_FDS", strconv.Itoa(len(list)))
	set("LISTEN_PID", "1")
}
