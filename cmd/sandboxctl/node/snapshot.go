// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
	"sandbox.internal/shim/pkg/inspect"
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
	// Outdated says that another program is installed than this shim of this project's runs.
	Outdated bool `json:"outdated,omitempty"`
}

// Upgradable reports whether there is a shim, and it is one of this project, of which the oldest tell no version.
func (s *Shim) Upgradable() bool {
	ours := s.Version != "" || s.Runtime == "io.containerd.sandbox.v1" || s.Runtime == "containerd-shim-sandbox-v1"
	return ours && (s.Pid != 0 || s.Error != "")
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

	Usage  measure.Usage   `json:"usage"`
	Rates  *Rates          `json:"rates,omitempty"`  // nil: there is no earlier snapshot
	CPUSet *inspect.CPUSet `json:"cpuset,omitempty"` // nil: it follows no source
	Idle   *inspect.Idle   `json:"idle,omitempty"`   // nil: it does not sleep
	Error  string          `json:"error,omitempty"`  // why something is not known
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

// Shown is the state for people: asleep for a container that runs and sleeps.
func (c *Container) Shown() string {
	if c.State == Running && c.Idle != nil && c.Idle.Asleep {
		return "asleep"
	}
	return string(c.State)
}

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

// Rates are what a container did between two snapshots, per second.
type Rates struct {
	CPU       float64 `json:"cpu"`       // CPUs in use: 1.5 is one and a half
	Throttled float64 `json:"throttled"` // share of periods in which it had to wait, 0 to 1
	Execs     float64 `json:"execs"`
	OOMKills  uint64  `json:"oom_kills"` // that many, not per second
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
	u, e := &c.Usage, &earlier.Usage
	r := Rates{CPU: float64(u.CPU-e.CPU) / float64(passed)}
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

// Inspection is all that is known of one container or of an empty sandbox.
type Inspection struct {
	Namespace string     `json:"namespace"`
	Pod       Pod        `json:"pod"`
	Container *Container `json:"container,omitempty"` // none: the id is that of a sandbox
	// What the shim reports, if it is one of this project and answers.
	Known *inspect.ContainerInfo `json:"known,omitempty"`
	Shim  *inspect.Shim          `json:"shim,omitempty"`
	// The shim's share of memory; 0: it is not known.
	ShimPSS uint64 `json:"shim_pss,omitempty"`
}

// Find returns the namespace and the id of the container or sandbox that id, or the beginning of its id, names.
func (s *Snapshot) Find(id string) (namespace, full string, err error) {
	var exact, begin []key
	add := func(k key) {
		if k.id == id {
			exact = append(exact, k)
		} else if strings.HasPrefix(k.id, id) {
			begin = append(begin, k)
		}
	}
	for _, p := range s.Pods {
		sandbox := p.Sandbox
		for _, c := range p.Containers {
			add(key{c.Namespace, c.ID})
			sandbox = sandbox && c.ID != p.ID
		}
		if sandbox {
			add(key{p.Namespace, p.ID})
		}
	}
	found := exact
	if len(found) == 0 && id != "" {
		found = begin
	}
	switch len(found) {
	case 0:
		return "", "", fmt.Errorf("%q: no container and no sandbox has this id, or one that begins with it", id)
	case 1:
		return found[0].namespace, found[0].id, nil
	}
	var names []string
	for _, k := range found {
		names = append(names, k.id+" in namespace "+k.namespace)
	}
	return "", "", fmt.Errorf("%q: must name one, and names %s: give more of the id, or --namespace",
		id, strings.Join(names, " and "))
}

// Inspect returns what is known of a container or a sandbox.
func (n *Node) Inspect(ctx context.Context, id string) (*Inspection, error) {
	s, err := n.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	namespace, id, err := s.Find(id)
	if err != nil {
		return nil, err
	}
	in := &Inspection{Namespace: namespace, Container: s.Container(namespace, id)}
	if p := s.Pod(namespace, id); p != nil {
		in.Pod = *p
	}
	if known := n.shims[in.Pod.Shim.Address]; known != nil && known.Error == "" && !known.other {
		in.Shim = &known.answer.Shim
		for i := range known.answer.Containers {
			if c := &known.answer.Containers[i]; in.Container != nil && c.ID == id {
				in.Known = c
			}
		}
	}
	if pid := in.Pod.Shim.Pid; pid != 0 {
		rollup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)) // it may have ended
		in.ShimPSS = measure.Field(rollup, "Pss")
	}
	return in, nil
}

// Pod returns the pod that is, or has, what Find has found.
func (s *Snapshot) Pod(namespace, id string) *Pod {
	i := slices.IndexFunc(s.Pods, func(p Pod) bool {
		return p.Namespace == namespace &&
			(p.ID == id || slices.ContainsFunc(p.Containers, func(c Container) bool { return c.ID == id }))
	})
	if i < 0 {
		return nil
	}
	return &s.Pods[i]
}

// Dial connects to the shim of a container or a sandbox, and returns its full id.
func (n *Node) Dial(ctx context.Context, id string) (client *shim.Client, full string, err error) {
	s, err := n.Snapshot(ctx)
	if err != nil {
		return nil, "", err
	}
	namespace, full, err := s.Find(id)
	if err != nil {
		return nil, "", err
	}
	address, err := shim.Find(n.config.State, namespace, full)
	if err != nil {
		return nil, "", err
	}
	client, err = shim.Dial(ctx, address)
	return client, full, err
}
