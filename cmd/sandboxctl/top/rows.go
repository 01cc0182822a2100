// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"slices"
	"strings"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// row is a line of the table: a pod, or a container.
type row struct {
	key       string // the same in each snapshot
	namespace string
	id        string // of the container; of a pod with a sandbox: of that
	name      string
	state     string
	pod       bool // it has rows of its own
	inPod     bool

	cpu      float64 // of one CPU: 1 is all of it
	memory   uint64
	limit    uint64
	pressure pressure
	pids     uint64
	execs    float64
	execsOK  bool
	oom      uint64
	throttle float64
	cpus     string
	source   string
	shim     node.Shim
	unknown  measure.Unknown
	err      string
}

// pressure is the average of the last ten seconds, in percent. known is false on cgroup v1.
type pressure struct {
	cpu, memory, io float64
	known           bool
}

func (p pressure) worst() float64 { return max(p.cpu, p.memory, p.io) }

func pressureOf(p measure.Pressure) pressure {
	some := func(psi *measure.PSI) float64 {
		if psi == nil {
			return 0
		}
		return psi.Some10
	}
	return pressure{some(p.CPU), some(p.Memory), some(p.IO), p.CPU != nil || p.Memory != nil || p.IO != nil}
}

// group is a pod with its containers.
type group struct {
	row
	containers []row
}

// groups makes rows of a snapshot and the one before it, which may be nil: then there are no rates.
func groups(now, before *node.Snapshot) []group {
	earlier := map[[2]string]*node.Container{} // by namespace and id
	if before != nil {
		for i := range before.Pods {
			for j := range before.Pods[i].Containers {
				c := &before.Pods[i].Containers[j]
				earlier[[2]string{c.Namespace, c.ID}] = c
			}
		}
	}
	list := make([]group, 0, len(now.Pods))
	for i := range now.Pods {
		p := &now.Pods[i]
		g := group{row: row{
			key: p.Namespace + "/" + p.ID, namespace: p.Namespace, id: p.ID, name: p.Name, pod: p.Sandbox, shim: p.Shim,
			err: p.Shim.Error,
		}}
		for j := range p.Containers {
			c := &p.Containers[j]
			g.containers = append(g.containers, containerRow(p, c, earlier[[2]string{c.Namespace, c.ID}]))
		}
		if p.Sandbox {
			g.sum()
		}
		list = append(list, g)
	}
	return list
}

func containerRow(p *node.Pod, c, earlier *node.Container) row {
	r := row{
		key: p.Namespace + "/" + p.ID + "/" + c.ID, namespace: c.Namespace, id: c.ID, name: c.Name, inPod: p.Sandbox,
		state: string(c.State), memory: c.Usage.Memory, limit: c.Usage.MemoryLimit, pressure: pressureOf(c.Usage.Pressure),
		pids: c.Usage.Pids, execsOK: c.ExecsKnown, oom: c.Usage.OOMKills, cpus: c.Usage.CPUs, shim: p.Shim,
		unknown: c.Usage.Unknown,
		err:     cmp.Or(c.Error, p.Shim.Error),
	}
	if c.Pause {
		r.name += " (pause)"
	}
	if c.CPUSet != nil {
		r.source = strings.TrimPrefix(c.CPUSet.Source, "/sys/fs/cgroup")
		if c.CPUSet.Pinned {
			r.source += " (pinned)"
		}
		r.err = cmp.Or(r.err, c.CPUSet.Error)
	}
	if earlier != nil {
		rates := c.RatesSince(earlier)
		r.cpu, r.throttle, r.execs = rates.CPU, rates.Throttled, rates.Execs
	}
	return r
}

// sum fills the row of a pod. Its limit is the sum, if each container has one. CPUs and source are those of the
// containers, if all have the same.
func (g *group) sum() {
	limited := len(g.containers) > 0
	for i, c := range g.containers {
		g.cpu += c.cpu
		g.memory += c.memory
		g.limit += c.limit
		limited = limited && c.limit > 0
		g.pids += c.pids
		g.execs += c.execs
		g.execsOK = g.execsOK || c.execsOK
		g.oom += c.oom
		g.throttle = max(g.throttle, c.throttle)
		g.pressure.cpu = max(g.pressure.cpu, c.pressure.cpu)
		g.pressure.memory = max(g.pressure.memory, c.pressure.memory)
		g.pressure.io = max(g.pressure.io, c.pressure.io)
		g.pressure.known = g.pressure.known || c.pressure.known
		if i == 0 {
			g.cpus, g.source = c.cpus, c.source
		}
		if c.cpus != g.cpus {
			g.cpus = "*"
		}
		if c.source != g.source {
			g.source = "*"
		}
		g.unknown = either(g.unknown, c.unknown)
		g.err = cmp.Or(g.err, c.err)
	}
	if !limited {
		g.limit = 0
	}
}

// either returns what is not known of one or the other, nor of their sum.
func either(a, b measure.Unknown) measure.Unknown {
	return measure.Unknown{
		CPU: a.CPU || b.CPU, Times: a.Times || b.Times, Throttling: a.Throttling || b.Throttling,
		Memory: a.Memory || b.Memory, OOMKills: a.OOMKills || b.OOMKills, Pids: a.Pids || b.Pids,
	}
}

// order is how the table is sorted.
type order struct {
	column  int // of columns
	reverse bool
}

func (o order) compare(a, b *row) int {
	c := columns[o.column].compare(a, b)
	if o.reverse {
		c = -c
	}
	return cmp.Or(c, cmp.Compare(a.name, b.name), cmp.Compare(a.key, b.key))
}

// arrange returns the rows to show: the groups that match the filter, and the containers of those that are not folded.
// A pod of which only a container matches is shown with that container.
func arrange(list []group, o order, filter string, folded map[string]bool) (rows []row) {
	filter = strings.ToLower(filter)
	sorted := make([]*group, len(list))
	for i := range list {
		sorted[i] = &list[i]
	}
	slices.SortFunc(sorted, func(a, b *group) int { return o.compare(a.top(), b.top()) })
	for _, g := range sorted {
		containers := slices.Clone(g.containers)
		if !g.pod {
			containers = slices.DeleteFunc(containers, func(r row) bool { return !r.has(filter) })
			rows = append(rows, containers...)
			continue
		}
		if !g.has(filter) {
			containers = slices.DeleteFunc(containers, func(r row) bool { return !r.has(filter) })
			if len(containers) == 0 {
				continue
			}
		}
		rows = append(rows, g.row)
		if !folded[g.key] {
			slices.SortFunc(containers, func(a, b row) int { return o.compare(&a, &b) })
			rows = append(rows, containers...)
		}
	}
	return rows
}

// top returns the row by which a group is sorted.
func (g *group) top() *row {
	if !g.pod && len(g.containers) > 0 {
		return &g.containers[0]
	}
	return &g.row
}

// has reports whether the names of a row contain text, which is in lower case, or text is its runtime or state.
func (r *row) has(text string) bool {
	return slices.ContainsFunc([]string{r.name, r.id, r.namespace}, func(s string) bool {
		return strings.Contains(strings.ToLower(s), text)
	}) || text == r.state || text == r.runtime()
}

// runtime returns the runtime without what all names have in common: runc for io.containerd.runc.v2.
func (r *row) runtime() string {
	parts := strings.Split(r.shim.Runtime, ".")
	return parts[max(0, len(parts)-2)]
}
