// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/pkg/inspect"
)

// Inspect shows one container.
func Inspect(o *cli.Options) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "inspect ID",
		Short: "Show all that is known of a container or a sandbox",
		Long: `Show all that is known of a container or a sandbox: its state, what it uses, its
settings with their origin, how its processes were started, its execs and the verdicts
on the last ones, and its shim with the events that containerd does not have yet.

ID may be the beginning of an id. Of a container of another runtime there is what
containerd and the kernel tell.`,
		Example: "  sandboxctl inspect web\n  sandboxctl inspect web -o json | jq .known.settings",
		Args:    cli.OneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := o.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer n.Close() //nolint:errcheck // what was asked is answered
			in, err := n.Inspect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if o.JSON() {
				return cli.WriteJSON(cmd.OutOrStdout(), in)
			}
			p := printer{w: cmd.OutOrStdout()}
			p.inspection(in, all)
			return p.err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "show settings that have their default, too")
	return cmd
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

// line prints one line, whatever the arguments are.
func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, cli.Printable(fmt.Sprintf(format, args...)))
	}
}

func (p *printer) section(title string) {
	p.line("")
	p.line("%s", title)
}

// row prints a line unless the value is empty.
func (p *printer) row(name, format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" {
		p.line("  %-14s %s", name, text)
	}
}

func (p *printer) inspection(in *node.Inspection, all bool) {
	if c := in.Container; c != nil {
		p.container(in, c)
	} else {
		p.line("Sandbox %s in namespace %s", in.Pod.ID, in.Namespace)
	}
	if k := in.Known; k != nil {
		p.known(k, all)
	}
	p.shim(in)
}

func (p *printer) container(in *node.Inspection, c *node.Container) {
	p.line("Container %s in namespace %s", c.ID, c.Namespace)
	if in.Pod.Sandbox {
		p.row("pod", "%s (%s)", in.Pod.Name, in.Pod.ID)
	}
	if c.Name != c.ID {
		p.row("name", "%s", c.Name)
	}
	p.row("image", "%s", c.Image)
	p.row("runtime", "%s", c.Runtime)
	state := string(c.State)
	if c.State == node.Stopped {
		state += fmt.Sprintf(", exit status %d", c.ExitStatus)
	}
	p.row("state", "%s", state)
	p.row("problem", "%s", c.Error)
	if c.Pid != 0 {
		p.row("pid", "%d", c.Pid)
	}
	u := c.Usage
	if u.Cgroup == "" {
		return
	}
	p.section("Usage")
	p.row("cgroup", "%s", u.Cgroup)
	known := func(unknown bool, text string) string {
		if unknown {
			return "-"
		}
		return text
	}
	p.row("cpu time", "%s", known(u.Unknown.CPU, u.CPU.Round(time.Millisecond).String()))
	if u.CPULimit > 0 && !u.Unknown.Throttling {
		p.row("cpu limit", "%.2f, throttled in %d of %d periods, %v in all", u.CPULimit, u.Throttled, u.Periods,
			u.Waited.Round(time.Millisecond))
	}
	p.row("memory", "%s", memory(c))
	p.row("oom kills", "%s", known(u.Unknown.OOMKills, fmt.Sprint(u.OOMKills)))
	pids := fmt.Sprint(u.Pids)
	if u.PidsLimit > 0 {
		pids += fmt.Sprintf("/%d", u.PidsLimit)
	}
	p.row("pids", "%s", known(u.Unknown.Pids, pids))
	p.row("cpus", "%s", u.CPUs)
	p.row("memory nodes", "%s", u.Mems)
	for i, psi := range []*measure.PSI{u.Pressure.CPU, u.Pressure.Memory, u.Pressure.IO} {
		if name := []string{"cpu", "memory", "io"}[i]; psi != nil {
			p.row(name+" pressure", "some %.2f %%, full %.2f %% of the last 10 s", psi.Some10, psi.Full10)
		}
	}
}

func (p *printer) known(k *inspect.ContainerInfo, all bool) {
	p.section("Settings")
	p.row("bundle", "%s", k.Bundle)
	for _, s := range k.Settings {
		if all || s.Origin != inspect.FromDefault {
			p.line("  %-22s %-24s %s", s.Name, cmp.Or(s.Value, "-"), s.Origin)
		}
	}
	for _, d := range k.HostRootfs {
		access := "read-only"
		if d.Writable {
			access = "writable"
		}
		p.row("host directory", "%s at %s, %s", d.Host, d.Container, access)
	}
	if s := k.CPUSet; s != nil {
		p.section("CPU set")
		p.row("source", "%s", s.Source)
		p.row("cpus", "%s", s.CPUs)
		p.row("memory nodes", "%s", s.Mems)
		if s.Pinned {
			p.row("pinned", "it has a cpuset of its own meanwhile")
		}
		p.row("kept, since", "%s", s.Error)
	}
	if s := k.Idle; s != nil {
		p.section("Idle")
		since := "awake"
		if s.Asleep {
			since = "asleep since " + s.Since.Format(time.DateTime)
		}
		p.row("now", "%s", since)
		p.row("slept", "%d times, %d bytes given back the last time", s.Slept, s.Freed)
		for _, reason := range slices.Sorted(maps.Keys(s.Woken)) {
			p.row("woken", "%d times by %s", s.Woken[reason], reason)
		}
	}
	if s := k.Notify; s != nil {
		p.section("Readiness")
		p.row("ready", "%t", s.Ready)
		p.row("status", "%s", s.Status)
		if s.Errno != 0 {
			p.row("errno", "%d", s.Errno)
		}
	}
	p.section("Processes")
	p.row("init by", "%s", because(k.Launch.Init, k.Launch.InitReason))
	p.row("execs", "%d started, %d not deleted", k.Execs.Started, k.Execs.Known)
	if k.Launch.ExecsByLibcontainer > 0 {
		p.row("by libcontainer", "%s", because(fmt.Sprintf("%d execs", k.Launch.ExecsByLibcontainer), k.Launch.ExecReason))
	}
	for _, e := range k.Execs.List {
		text := e.State
		if e.Exit != nil {
			text += fmt.Sprintf(", exit status %d", e.Exit.Status)
		} else if e.Pid != 0 {
			text += fmt.Sprintf(", pid %d", e.Pid)
		}
		if e.CPU > 0 {
			text += fmt.Sprintf(", cpu %v, memory %s", e.CPU.Round(time.Millisecond), Bytes(e.Memory))
		}
		p.row("exec "+e.ID, "%s", text)
	}
}

func because(what, reason string) string {
	if reason == "" {
		return what
	}
	return what + ": " + reason
}

func (p *printer) shim(in *node.Inspection) {
	p.section("Shim")
	s := in.Pod.Shim
	p.row("runtime", "%s", s.Runtime)
	p.row("problem", "%s", s.Error)
	if s.Pid == 0 {
		if s.Error == "" {
			p.row("state", "none runs")
		}
		return
	}
	p.row("pid", "%d", s.Pid)
	p.row("version", "%s", s.Version)
	p.row("socket", "%s", s.Address)
	memory := Bytes(s.RSS)
	if in.ShimPSS > 0 {
		memory = fmt.Sprintf("%s, its share of what is shared counted (RSS %s)", Bytes(in.ShimPSS), memory)
	}
	p.row("memory", "%s", memory)
	p.row("cpu time", "%v", s.CPU)
	k := in.Shim
	if k == nil {
		return
	}
	p.row("started", "%s, %v ago", k.Started.Format(time.DateTime), time.Since(k.Started).Round(time.Second))
	p.row("heap", "%s of %s", Bytes(k.Heap), Bytes(k.HeapHeld))
	p.row("goroutines", "%d", k.Goroutines)
	p.row("clients", "%d, this program among them", k.Clients)
	events := fmt.Sprintf("%d sent, %d wait", k.Events.Sent, k.Events.Waiting)
	if k.Events.Waiting > 0 {
		events += fmt.Sprintf(" since %v: %s", time.Since(k.Events.Since).Round(time.Second), k.Events.Oldest)
	}
	p.row("events", "%s", events)
	p.row("problem", "%s", strings.TrimSpace(k.Events.Problem))
	p.row("containerd", "%s", k.Containerd)
}
