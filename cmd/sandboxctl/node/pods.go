// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
)

// Snapshot is what a node runs at one time. Pods are in the order of namespace, name and id.
type Snapshot struct {
	Time time.Time    `json:"time"`
	Node measure.Host `json:"node"`
	Pods []Pod        `json:"pods"`
}

// Pod is the containers of a sandbox, or one container that is in none.
type Pod struct {
	Namespace  string      `json:"namespace"` // containerd's
	ID         string      `json:"id"`        // of the sandbox, or of its only container
	Name       string      `json:"name"`      // NAMESPACE/NAME of a Kubernetes pod; else the id
	Sandbox    bool        `json:"sandbox"`   // false: a container without a sandbox
	Shim       Shim        `json:"shim"`
	Containers []Container `json:"containers"` // in the order of their ids; none in an empty sandbox
}

// Shim is the process that runs the containers of a pod.
type Shim struct {
	Runtime string        `json:"runtime"`           // io.containerd.sandbox.v1
	Pid     int           `json:"pid,omitempty"`     // 0: none runs
	Version string        `json:"version,omitempty"` // of this project's shims
	Address string        `json:"address,omitempty"` // of its socket, without unix://
	CPU     time.Duration `json:"cpu_ns"`            // used since it was started
	RSS     uint64        `json:"rss"`               // bytes
	Error   string        `json:"error,omitempty"`   // why it was not asked, or did not answer
}

// Container is one container and what it uses.
type Container struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
	Name      string `json:"name"`            // in its Kubernetes pod; else the id
	Image     string `json:"image,omitempty"` // by containerd's name
	Runtime   string `json:"runtime"`
	Pause     bool   `json:"pause,omitempty"` // it does nothing but hold the namespaces of its pod
	State     State  `json:"state"`
	Pid       int    `json:"pid,omitempty"` // of its first process; 0: there is none
	// ReadAt is when Usage was read.
	ReadAt time.Time `json:"-"`
	// ExitStatus is set only in the state stopped.
	ExitStatus uint32 `json:"exit_status,omitempty"`

	Execs        int    `json:"execs"`         // that run now
	ExecsStarted uint64 `json:"execs_started"` // since the container was created, as far as is known
	ExecsKnown   bool   `json:"execs_known"`   // false: of runc's shims, which do not count

	Usage  measure.Usage `json:"usage"`
	Rates  *Rates        `json:"rates,omitempty"`  // nil: there is no earlier snapshot
	CPUSet *CPUSet       `json:"cpuset,omitempty"` // nil: it follows no source
	Error  string        `json:"error,omitempty"`  // why something is not known
}

// State of a container.
type State string

// States. Dead is a task to whose shim containerd has no connection, or whose shim does not answer.
const (
	NoTask  State = "no-task" // containerd has its configuration and nothing runs
	Created State = "created"
	Running State = "running"
	Pausing State = "pausing"
	Paused  State = "paused"
	Stopped State = "stopped"
	Dead    State = "dead"
)

// livingPid returns the pid of a container's first process, or 0 if that is not known to run: the kernel may have given
// the pid of one that has ended to another process.
func (c *Container) livingPid() int {
	switch c.State {
	case Created, Running, Pausing, Paused:
		return c.Pid
	case NoTask, Stopped, Dead:
	}
	return 0
}

// CPUSet is the state of a container that follows the cpuset of another cgroup.
type CPUSet struct {
	Source string `json:"source"` // absolute path of the cgroup
	CPUs   string `json:"cpus"`   // that it was assigned
	Mems   string `json:"mems,omitempty"`
	Pinned bool   `json:"pinned,omitempty"` // it has a cpuset of its own for now
	Writes int    `json:"writes"`
	Error  string `json:"error,omitempty"` // why the last assignment is kept
}

// Rates are what a container did between two snapshots, per second.
type Rates struct {
	CPU       float64 `json:"cpu"`       // CPUs in use: 1.5 is one and a half
	Throttled float64 `json:"throttled"` // share of periods in which it had to wait, 0 to 1
	Execs     float64 `json:"execs"`
	OOMKills  uint64  `json:"oom_kills"` // that many, not per second
	// Shares of the time in which some task waited, 0 to 1; 0 where that is not known.
	CPUPressure    float64 `json:"cpu_pressure"`
	MemoryPressure float64 `json:"memory_pressure"`
	IOPressure     float64 `json:"io_pressure"`
}

// RatesSince returns what a container did since an earlier snapshot of it. All are 0 for a container that was made
// again in between, and where less is known of one than of the other, or nothing.
func (c *Container) RatesSince(earlier *Container) Rates {
	// Not what passed between the snapshots: in each, containers are read one after the other, in any order.
	passed := c.ReadAt.Sub(earlier.ReadAt)
	if passed <= 0 || c.Usage.Cgroup == "" || earlier.Usage.Cgroup == "" {
		return Rates{}
	}
	if c.Usage.CPU < earlier.Usage.CPU || c.Usage.Unknown != earlier.Usage.Unknown {
		return Rates{}
	}
	share := func(now, before *measure.PSI) float64 {
		if now == nil || before == nil || now.SomeTotal < before.SomeTotal {
			return 0
		}
		return min(float64(now.SomeTotal-before.SomeTotal)/float64(passed), 1)
	}
	u, e := &c.Usage, &earlier.Usage
	r := Rates{
		CPU:            float64(u.CPU-e.CPU) / float64(passed),
		CPUPressure:    share(u.Pressure.CPU, e.Pressure.CPU),
		MemoryPressure: share(u.Pressure.Memory, e.Pressure.Memory),
		IOPressure:     share(u.Pressure.IO, e.Pressure.IO),
	}
	if c.ExecsKnown && earlier.ExecsKnown && c.ExecsStarted >= earlier.ExecsStarted {
		r.Execs = float64(c.ExecsStarted-earlier.ExecsStarted) / passed.Seconds()
	}
	if periods := u.Periods - e.Periods; u.Periods > e.Periods && u.Throttled >= e.Throttled {
		r.Throttled = float64(u.Throttled-e.Throttled) / float64(periods)
	}
	if u.OOMKills > e.OOMKills {
		r.OOMKills = u.OOMKills - e.OOMKills
	}
	return r
}

// SetRates computes what the containers did since an earlier snapshot, which may be nil.
func (s *Snapshot) SetRates(earlier *Snapshot) {
	if earlier == nil {
		return
	}
	before := map[key]*Container{}
	for _, p := range earlier.Pods {
		for i := range p.Containers {
			c := &p.Containers[i]
			before[key{c.Namespace, c.ID}] = c
		}
	}
	for _, p := range s.Pods {
		for i := range p.Containers {
			c := &p.Containers[i]
			c.Rates = &Rates{}
			if e := before[key{c.Namespace, c.ID}]; e != nil {
				*c.Rates = c.RatesSince(e)
			}
		}
	}
}

// Container finds a container by namespace and id.
func (s *Snapshot) Container(namespace, id string) *Container {
	for i := range s.Pods {
		for j := range s.Pods[i].Containers {
			if c := &s.Pods[i].Containers[j]; c.Namespace == namespace && c.ID == id {
				return c
			}
		}
	}
	return nil
}

// Process is one process of a container.
type Process struct {
	Pid     int           `json:"pid"`
	Exec    string        `json:"exec,omitempty"` // to which it belongs; empty: the container's own, or not known
	Name    string        `json:"name"`
	Started time.Time     `json:"started"`
	CPU     time.Duration `json:"cpu_ns"`
	RSS     uint64        `json:"rss"`
}

// pods groups the containers.
func (n *Node) pods() []Pod {
	byKey := map[key]*Pod{}
	for _, s := range n.sandboxes {
		byKey[s.key] = &Pod{
			Namespace: s.namespace, ID: s.id, Name: s.pod, Sandbox: true, Shim: s.shim.of(s.runtime),
			Containers: []Container{}, // in JSON a list, too, and not null
		}
	}
	for _, c := range n.containers {
		k := key{c.Namespace, cmp.Or(c.sandboxID, c.ID)}
		p := byKey[k]
		if p == nil {
			p = &Pod{Namespace: k.namespace, ID: k.id, Sandbox: c.sandboxID != "", Shim: c.shim.of(c.Runtime)}
			byKey[k] = p
		}
		p.Name = cmp.Or(p.Name, c.pod)
		if p.Shim.Pid == 0 && c.shim != nil {
			p.Shim = c.shim.Shim
		}
		p.Containers = append(p.Containers, c.Container)
	}
	pods := make([]Pod, 0, len(byKey))
	for _, p := range byKey {
		p.Name = cmp.Or(p.Name, p.ID)
		slices.SortFunc(p.Containers, func(a, b Container) int { return strings.Compare(a.ID, b.ID) })
		pods = append(pods, *p)
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name+"\x00"+a.ID, b.Namespace+"\x00"+b.Name+"\x00"+b.ID)
	})
	return pods
}

// of may be called for nil.
func (s *shimState) of(runtime string) Shim {
	if s == nil {
		return Shim{Runtime: runtime}
	}
	return s.Shim
}

// runtimeName returns the name by which people know a runtime: the path of a binary ends in it.
func runtimeName(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Base(name)
	}
	return name
}
