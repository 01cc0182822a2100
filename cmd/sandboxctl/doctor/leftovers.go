// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
)

// socketDir returns where shims make their sockets.
func (e *Examination) socketDir() string {
	if dir := e.config.text("plugins", "io.containerd.shim.v1.manager", "socket_dir"); dir != "" {
		return dir
	}
	return "/run/containerd/s"
}

// leftoversOf returns a check of one kind of leftovers.
func leftoversOf(kind leftover.Kind) func(e *Examination, ctx context.Context) []Finding {
	return func(e *Examination, _ context.Context) []Finding {
		if e.knownErr != nil && kind.NeedsKnown() {
			return []Finding{none("containerd does not say which containers there are: %v", e.knownErr)}
		}
		var findings []Finding
		for _, l := range e.leftovers {
			if l.Kind != kind {
				continue
			}
			text, find := l.Text, warn
			if l.Caution != "" {
				text, find = text+": "+l.Caution, bad
			}
			findings = append(findings, find("%s", text).fix("%s", l.Fix))
		}
		if findings == nil {
			findings = append(findings, ok("none"))
		}
		return findings
	}
}
