// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a node for what the shim and its users need, and says how to fix what is wrong.
//
// [Checks] is the table of all checks. Each looks at one thing. What several look at is found first: the process of
// containerd and its configuration, what lies on disk, and last what containerd knows. So what containerd has made
// meanwhile is never taken for a leftover.
//
// It starts no goroutine, and changes nothing. It runs programs of containerd and the shim, but only those that nobody
// except root can have written.
package doctor

import (
	"context"
	"fmt"
	"os"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// Status of a finding, and of a check: that of its worst finding.
type Status string

// Statuses, from the best to the worst.
const (
	NotApplicable Status = "not applicable"
	OK            Status = "ok"
	Warning       Status = "warning"
	Failure       Status = "failure"
)

func (s Status) rank() int {
	return map[Status]int{NotApplicable: 0, OK: 1, Warning: 2, Failure: 3}[s]
}

// Finding is one thing that a check saw.
type Finding struct {
	Status Status `json:"status"`
	Text   string `json:"text"`
	Fix    string `json:"fix,omitempty"` // the command or the setting that fixes it
}

func ok(format string, a ...any) Finding {
	return Finding{Status: OK, Text: fmt.Sprintf(format, a...)}
}

func none(format string, a ...any) Finding {
	return Finding{Status: NotApplicable, Text: fmt.Sprintf(format, a...)}
}

func warn(format string, a ...any) Finding {
	return Finding{Status: Warning, Text: fmt.Sprintf(format, a...)}
}

func bad(format string, a ...any) Finding {
	return Finding{Status: Failure, Text: fmt.Sprintf(format, a...)}
}

// orOK returns the findings, or that all is well if there are none.
func orOK(findings []Finding, text string) []Finding {
	if findings == nil {
		return []Finding{ok("%s", text)}
	}
	return findings
}

// fix gives a finding a remedy other than that of its check.
func (f Finding) fix(format string, a ...any) Finding {
	f.Fix = fmt.Sprintf(format, a...)
	return f
}

// Result is what one check found.
type Result struct {
	Check    string    `json:"check"`
	Status   Status    `json:"status"`
	Findings []Finding `json:"findings"`
}

// Report is what all checks found.
type Report struct {
	Status    Status              `json:"status"` // of the worst
	Checks    []Result            `json:"checks"`
	Leftovers []leftover.Leftover `json:"leftovers"`
}

// Config says which node is examined, and by what.
type Config struct {
	Root    machine.Root
	Address string // socket of containerd
	State   string // state directory of containerd; "": that of its configuration
	Version string // of this program
	Timeout time.Duration
	Probes  Probes
}

// Probes ask the kernel and containerd. Tests have others.
type Probes struct {
	Euid     int
	Features func() map[string]error                               // by the name of the feature
	Peer     func(ctx context.Context, socket string) (int, error) // who listens: its pid, 0 if it cannot be seen
	Dump     func(ctx context.Context, d Daemon) ([]byte, error)   // the configuration that containerd has
	Connect  func(ctx context.Context, c node.Config) (API, error) // to containerd
}

// SystemProbes ask this machine.
func SystemProbes() Probes {
	return Probes{Euid: os.Geteuid(), Features: features, Peer: peer, Dump: dumpConfig, Connect: connect}
}

// Examination is a node with what several checks look at.
type Examination struct {
	Config

	daemon    Daemon
	daemonErr error // why containerd was not found

	config    config
	configErr error

	version    string
	versionErr error

	known leftover.Known
	// knownErr says why it is not known which containers there are.
	knownErr error

	leftovers []leftover.Leftover
}

// Examine looks at a node and runs all checks.
func Examine(ctx context.Context, c Config) Report {
	e := &Examination{Config: c}
	e.findDaemon(ctx)
	e.readConfig(ctx)
	e.findLeftovers(ctx)
	report := Report{Status: NotApplicable, Leftovers: []leftover.Leftover{}}
	for _, check := range Checks() {
		r := Result{Check: check.Name, Status: NotApplicable, Findings: check.run(e, ctx)}
		for i := range r.Findings {
			f := &r.Findings[i]
			if f.Status.rank() > OK.rank() && f.Fix == "" {
				f.Fix = check.Fix
			}
			r.Status = worse(r.Status, f.Status)
		}
		report.Status = worse(report.Status, r.Status)
		report.Checks = append(report.Checks, r)
	}
	report.Leftovers = append(report.Leftovers, e.leftovers...)
	return report
}

// findLeftovers lists what lies on disk before it asks containerd, which knew of what was made before that.
func (e *Examination) findLeftovers(ctx context.Context) {
	scan := leftover.Take(ctx, leftover.Config{
		Root: e.Root, State: e.State, Sockets: e.socketDir(), Address: e.Address, Daemon: e.daemon.Pid,
	})
	e.askDaemon(ctx)
	e.leftovers = scan.Find(e.known, e.knownErr)
}

func worse(a, b Status) Status {
	if b.rank() > a.rank() {
		return b
	}
	return a
}

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
