// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
	"sandbox.internal/shim/pkg/inspect"
)

// Inspection is all that is known of one container or of an empty sandbox.
type Inspection struct {
	Namespace string     `json:"namespace"`
	Pod       Pod        `json:"pod"`
	Container *Container `json:"container,omitempty"` // none: the id is that of a sandbox
	// Those of the container's first process.
	Namespaces []Namespace `json:"namespaces,omitempty"`
	// What the shim reports, if it is one of this project and answers.
	Known *inspect.Container `json:"known,omitempty"`
	Shim  *inspect.Shim      `json:"shim,omitempty"`
	// The shim's share of memory; 0: it is not known.
	ShimPSS uint64 `json:"shim_pss,omitempty"`
}

// Namespace is one of the kernel's.
type Namespace struct {
	Type  string `json:"type"`  // net, pid…
	Inode string `json:"inode"` // 4026531840
	Of    string `json:"of"`    // host, shim (which holds those of a pod), or container
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
	for _, p := range s.Pods {
		if p.Namespace == namespace && (p.ID == id || s.in(p, id)) {
			in.Pod = p
			break
		}
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
	if in.Container != nil {
		in.Namespaces = namespacesOf(in.Container.livingPid(), in.Pod.Shim.Pid)
	}
	return in, nil
}

func (s *Snapshot) in(p Pod, id string) bool {
	for _, c := range p.Containers {
		if c.ID == id {
			return true
		}
	}
	return false
}

// namespacesOf compares the namespaces of a process with those of the host and of the shim's main thread. There
// are none of a process that has ended.
func namespacesOf(pid, shim int) []Namespace {
	var all []Namespace
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		inode := func(pid any) string {
			link, _ := os.Readlink(filepath.Join("/proc", fmt.Sprint(pid), "ns", kind)) // the process may have ended
			return link
		}
		own := inode(pid)
		_, number, ok := strings.Cut(strings.TrimSuffix(own, "]"), "[")
		if !ok {
			continue
		}
		of := "container"
		switch own {
		case inode("self"): // which an operator runs on the host
			of = "host"
		case inode(shim):
			of = "shim"
		}
		all = append(all, Namespace{Type: kind, Inode: number, Of: of})
	}
	return all
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

// Processes lists the processes of a container in the order of their pids. For shims other than this project's,
// containerd reports only the pids, so no exec is known.
func (n *Node) Processes(ctx context.Context, namespace, id string) ([]Process, error) {
	ctx, cancel := n.in(ctx, namespace)
	defer cancel()
	list, err := n.shimProcesses(ctx, key{namespace, id})
	if !errdefs.IsNotImplemented(err) {
		return list, err
	}
	answer, err := tasksapi.NewTasksClient(n.conn).ListPids(ctx, &tasksapi.ListPidsRequest{ContainerID: id})
	if err != nil {
		return nil, fmt.Errorf("containerd: processes of %s: %w", id, errgrpc.ToNative(err))
	}
	host, err := measure.ReadHost(n.hierarchies)
	if err != nil {
		return nil, err
	}
	for _, p := range answer.Processes {
		stat, err := measure.ReadProcess("/", int(p.Pid))
		if err != nil {
			continue // it has ended
		}
		list = append(list, Process{
			Pid: int(p.Pid), Name: stat.Name, Started: host.BootTime.Add(stat.Starts), CPU: stat.CPU, RSS: stat.RSS,
		})
	}
	slices.SortFunc(list, func(a, b Process) int { return a.Pid - b.Pid })
	return list, nil
}

func (n *Node) shimProcesses(ctx context.Context, k key) ([]Process, error) {
	address, err := shim.Find(n.config.State, k.namespace, k.id)
	if err != nil {
		return nil, err
	}
	client, err := shim.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	told, err := client.Processes(ctx, k.id)
	if err != nil {
		return nil, err
	}
	var list []Process
	for _, p := range told {
		started := time.Time{}
		if p.Started != nil {
			started = p.Started.AsTime()
		}
		list = append(list, Process{
			Pid: p.Pid, Exec: p.Exec, Name: p.Name, Started: started, CPU: p.CPU, RSS: p.RSS,
		})
	}
	return list, nil
}
