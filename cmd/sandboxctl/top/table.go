// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// row is a line of the table: a container, or a pod, which has the sums of its containers.
type row struct {
	node.Container
	rates  node.Rates
	psi    float64 // the worst average of the last ten seconds, in percent
	psiOf  string  // c(pu), m(emory), i(o) or empty: it is not known
	source string  // of the CPUs
	key    string  // the same in each snapshot
	pod    bool
	inPod  bool
	shim   node.Shim
}

// groups returns the rows of each pod, that of the pod first.
func groups(s *node.Snapshot) (list [][]row) {
	for i := range s.Pods {
		p := &s.Pods[i]
		var rows []row
		for _, c := range p.Containers {
			rows = append(rows, containerRow(p, c))
		}
		if p.Sandbox {
			rows = append([]row{podRow(p, rows)}, rows...)
		}
		if len(rows) > 0 {
			list = append(list, rows)
		}
	}
	return list
}

func containerRow(p *node.Pod, c node.Container) row {
	r := row{Container: c, key: p.Namespace + "/" + p.ID + "/" + c.ID, inPod: p.Sandbox, shim: p.Shim}
	r.Error = cmp.Or(c.Error, p.Shim.Error)
	if c.Rates != nil {
		r.rates = *c.Rates
	}
	if c.Pause {
		r.Name += " (pause)"
	}
	if c.CPUSet != nil {
		r.source = strings.TrimPrefix(c.CPUSet.Source, "/sys/fs/cgroup")
		if c.CPUSet.Pinned {
			r.source += " (pinned)"
		}
		r.Error = cmp.Or(r.Error, c.CPUSet.Error)
	}
	for i, psi := range []*measure.PSI{c.Usage.Pressure.CPU, c.Usage.Pressure.Memory, c.Usage.Pressure.IO} {
		if psi != nil && (r.psiOf == "" || psi.Some10 > r.psi) {
			r.psi, r.psiOf = psi.Some10, "cmi"[i:i+1]
		}
	}
	return r
}

// podRow returns the row of a pod. Its limit is the sum, if each container has one. CPUs and source are those of the
// containers, if all have the same.
func podRow(p *node.Pod, containers []row) row {
	r := row{key: p.Namespace + "/" + p.ID, pod: true, shim: p.Shim}
	r.Namespace, r.ID, r.Name, r.Error = p.Namespace, p.ID, p.Name, p.Shim.Error
	same := func(all *string, one string, first bool) {
		if first {
			*all = one
		} else if *all != one {
			*all = "*"
		}
	}
	u, limited := &r.Usage, len(containers) > 0
	for i, c := range containers {
		r.rates.CPU += c.rates.CPU
		r.rates.Execs += c.rates.Execs
		r.rates.Throttled = max(r.rates.Throttled, c.rates.Throttled)
		u.Memory += c.Usage.Memory
		u.MemoryLimit += c.Usage.MemoryLimit
		u.Pids += c.Usage.Pids
		u.OOMKills += c.Usage.OOMKills
		limited = limited && c.Usage.MemoryLimit > 0
		r.ExecsKnown = r.ExecsKnown || c.ExecsKnown
		if r.psiOf == "" || c.psi > r.psi {
			r.psi, r.psiOf = c.psi, c.psiOf
		}
		same(&u.CPUs, c.Usage.CPUs, i == 0)
		same(&r.source, c.source, i == 0)
		a, b := &u.Unknown, c.Usage.Unknown // nothing is known of the sum of what is not known
		a.CPU, a.Memory, a.Pids = a.CPU || b.CPU, a.Memory || b.Memory, a.Pids || b.Pids
		a.OOMKills, a.Throttling = a.OOMKills || b.OOMKills, a.Throttling || b.Throttling
		r.Error = cmp.Or(r.Error, c.Error)
	}
	if !limited {
		u.MemoryLimit = 0
	}
	return r
}

// runtime returns the runtime without what all names have in common: runc for io.containerd.runc.v2.
func (r *row) runtime() string {
	parts := strings.Split(r.shim.Runtime, ".")
	return parts[max(0, len(parts)-2)]
}

// shimText returns the short name of the runtime, with the pid.
func (r *row) shimText() string {
	if r.shim.Pid == 0 {
		return strings.TrimSpace(r.runtime() + " -")
	}
	return fmt.Sprintf("%s %d", r.runtime(), r.shim.Pid)
}

// has reports whether the names of a row contain text, which is in lower case, or text is its runtime or state.
func (r *row) has(text string) bool {
	return slices.ContainsFunc([]string{r.Name, r.ID, r.Namespace}, func(s string) bool {
		return strings.Contains(strings.ToLower(s), text)
	}) || text == r.Shown() || text == r.runtime()
}

// column of the table. It is sorted by its number, the most first, or by its text.
type column struct {
	title  string
	width  int                          // 0: what is left
	from   int                          // the narrowest terminal that shows it
	text   func(r *row) string          // nil: that of the number
	number func(r *row) (float64, bool) // and whether it is known
	format func(number float64) string
}

// byCPU is the column by which the table is sorted at first.
const byCPU = 1

var columns = []column{
	{"NAME", 0, 0, func(r *row) string { return r.Name }, nil, nil},
	{"CPU%", 6, 0, nil, func(r *row) (float64, bool) { return r.rates.CPU, !r.Usage.Unknown.CPU }, percent},
	{"MEM", 6, 0, nil, func(r *row) (float64, bool) { return float64(r.Usage.Memory), !r.Usage.Unknown.Memory }, size},
	{"LIMIT", 6, 0, nil, (*row).limit, size},
	{"PSI", 6, 0, (*row).psiText, func(r *row) (float64, bool) { return r.psi, r.psiOf != "" }, nil},
	{"PIDS", 5, 0, nil, func(r *row) (float64, bool) { return float64(r.Usage.Pids), !r.Usage.Unknown.Pids }, count},
	{"EXEC/S", 6, 0, nil, func(r *row) (float64, bool) { return r.rates.Execs, r.ExecsKnown }, tenths},
	{"OOM", 4, 0, nil, (*row).oom, count},
	{"THR%", 5, 0, nil, func(r *row) (float64, bool) { return r.rates.Throttled, !r.Usage.Unknown.Throttling }, percent},
	{"CPUS", 7, 0, func(r *row) string { return cmp.Or(r.Usage.CPUs, "-") }, nil, nil},
	{"SHIM", 14, 100, (*row).shimText, nil, nil},
	{"STATE", 8, 140, func(r *row) string { return cmp.Or(r.Shown(), "-") }, nil, nil},
	{"SOURCE", 20, 120, func(r *row) string { return cmp.Or(r.source, "-") }, nil, nil},
	{"NAMESPACE", 12, 160, func(r *row) string { return r.Namespace }, nil, nil},
}

func (c column) of(r *row) string {
	if c.text != nil {
		return c.text(r)
	}
	if n, known := c.number(r); known {
		return c.format(n)
	}
	return "-"
}

func (r *row) oom() (float64, bool) { return float64(r.Usage.OOMKills), !r.Usage.Unknown.OOMKills }

func (r *row) limit() (float64, bool) { return float64(r.Usage.MemoryLimit), r.Usage.MemoryLimit > 0 }

func (r *row) psiText() string {
	if r.psiOf == "" {
		return "-"
	}
	return r.psiOf + tenths(r.psi)
}

// order is how the table is sorted.
type order struct {
	column  int // of columns
	reverse bool
}

func (o order) compare(a, b row) int {
	col := columns[o.column]
	c := cmp.Compare(col.of(&a), col.of(&b))
	if col.number != nil {
		x, _ := col.number(&a)
		y, _ := col.number(&b)
		c = cmp.Compare(y, x)
	}
	if o.reverse {
		c = -c
	}
	return cmp.Or(c, cmp.Compare(a.Name, b.Name), cmp.Compare(a.key, b.key))
}

// arrange returns the rows to show: the groups that match the filter. A pod of which only a container matches is shown
// with that container.
func arrange(list [][]row, o order, filter string) (rows []row) {
	filter = strings.ToLower(filter)
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b []row) int { return o.compare(a[0], b[0]) })
	for _, g := range sorted {
		pod, containers := g[:0], slices.Clone(g)
		if g[0].pod {
			pod, containers = g[:1], containers[1:]
		}
		if len(pod) == 0 || !pod[0].has(filter) {
			containers = slices.DeleteFunc(containers, func(r row) bool { return !r.has(filter) })
			if len(containers) == 0 {
				continue
			}
		}
		slices.SortFunc(containers, o.compare)
		rows = append(append(rows, pod...), containers...)
	}
	return rows
}
