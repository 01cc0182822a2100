// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/pod/nsholder"
)

// Limits of resolv.conf(5), which are Kubernetes' (pkg/apis/core/validation).
const (
	maxServers     = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// check refuses what no pod can be. The caller has checked ID and Bundle.
func (r Request) check() error {
	c := r.Config
	if err := c.checkModes(); err != nil {
		return err
	}
	if path := c.NetNS; path != "" && c.Network == ModeNode {
		return fmt.Errorf("network namespace %q: must not be given with the mode %s: %w",
			path, c.Network, errdefs.ErrInvalidArgument)
	}
	if len(c.Hostname) > nsholder.MaxHostname || strings.ContainsFunc(c.Hostname, notInWord) {
		return fmt.Errorf("hostname %q: must have at most %d bytes, and neither blanks nor control characters: %w",
			c.Hostname, nsholder.MaxHostname, errdefs.ErrInvalidArgument)
	}
	if c.Hostname != "" && c.Network == ModeNode { // the name would be the machine's
		return fmt.Errorf("hostname %q: must be empty with the mode %s of the network, when no UTS namespace is made: %w",
			c.Hostname, c.Network, errdefs.ErrInvalidArgument)
	}
	return cmp.Or(
		c.User.check(), checkDNS(c.DNS), checkSELinux(c.SELinux), checkLabel(c.MountLabel), checkSysctls(c))
}

func (c Config) checkModes() error {
	for _, m := range []struct {
		name    string
		mode    Mode
		allowed []Mode
	}{
		{"network", c.Network, []Mode{ModePod, ModeNode}},
		{"pid", c.PID, []Mode{ModePod, ModeContainer, ModeNode}},
		{"ipc", c.IPC, []Mode{ModePod, ModeNode}},
	} {
		if !slices.Contains(m.allowed, m.mode) {
			return fmt.Errorf("namespace_options.%s %s: must be one of %v for a pod: %w",
				m.name, m.mode, m.allowed, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

func checkDNS(d *DNSConfig) error {
	if d == nil {
		return nil
	}
	if len(d.Servers) > maxServers {
		return fmt.Errorf("dns_config.servers %q: must be at most %d: %w", d.Servers, maxServers, errdefs.ErrInvalidArgument)
	}
	if chars := len(strings.Join(d.Searches, " ")); len(d.Searches) > maxSearches || chars > maxSearchChars {
		return fmt.Errorf("dns_config.searches: are %d of %d characters, must be at most %d of %d: %w",
			len(d.Searches), chars, maxSearches, maxSearchChars, errdefs.ErrInvalidArgument)
	}
	for i, server := range d.Servers {
		if _, err := netip.ParseAddr(server); err != nil || strings.ContainsFunc(server, notInWord) {
			return fmt.Errorf("dns_config.servers[%d] %q: must be an address: %w", i, server, errdefs.ErrInvalidArgument)
		}
	}
	for _, list := range []struct {
		name  string
		words []string
	}{{"searches", d.Searches}, {"options", d.Options}} {
		for i, word := range list.words {
			if word == "" || strings.ContainsFunc(word, notInWord) {
				return fmt.Errorf("dns_config.%s[%d] %q: must be a word without blanks and control characters: %w",
					list.name, i, word, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

// notInWord reports whether r would end a word or a line in one of the files.
func notInWord(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || r == unicode.ReplacementChar
}
