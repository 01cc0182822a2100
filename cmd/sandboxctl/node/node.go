// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package node reports what the containers of one containerd are and use: it asks containerd which there are and their
// shims what they know, and reads the cgroups itself, which costs neither of them anything.
//
// Each snapshot asks anew. The shims are asked at the same time, by a goroutine each, which ends with the snapshot.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
	"sandbox.internal/shim/pkg/inspect"
)

// Config says which containerd.
type Config struct {
	Address   string        // socket of containerd
	State     string        // its state directory
	Namespace string        // of containers; empty: all
	Timeout   time.Duration // for containerd, and the same again for all shims
}

// Node is a connection to a containerd. Its methods are for one goroutine.
type Node struct {
	config      Config
	conn        *grpc.ClientConn
	hierarchies measure.Hierarchies

	// What the last snapshot found.
	containers []*container
	sandboxes  []*sandbox
	shims      map[string]*shimState // by the path of the socket
}

// key names a container or a sandbox.
type key struct{ namespace, id string }

// container is a Container and where it belongs.
type container struct {
	Container
	sandboxID string
	pod       string     // name
	shim      *shimState // nil: it has none
	cgroup    string     // as its shim says; empty: it does not
}

// sandbox is one of the Sandbox API.
type sandbox struct {
	key
	runtime, pod string
	shim         *shimState
}

// shimState is what is known of a shim.
type shimState struct {
	Shim
	address    shim.Address
	other      bool // it is not one of this project's
	answer     inspect.Answer
	keys       []key // of its containers and sandbox
	containers []*container
}

// Open connects to containerd.
func Open(ctx context.Context, c Config) (*Node, error) {
	conn, err := dial(ctx, c)
	if err != nil {
		return nil, err
	}
	h, err := measure.FindHierarchies("/")
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Node{config: c, conn: conn, hierarchies: h}, nil
}

// Close ends the connection.
func (n *Node) Close() error { return n.conn.Close() }

// Snapshot asks and reads. It takes at most Config.Timeout for containerd, the same again for the shims, and the time
// that reading takes. What is wrong with one container or shim is in its Error; an error is that of containerd.
func (n *Node) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := n.list(ctx); err != nil {
		return nil, err
	}
	n.askShims(ctx)
	if err := ctx.Err(); err != nil { // the answers of shims are cut off, too
		return nil, err
	}
	host, err := measure.ReadHost(n.hierarchies)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Time: time.Now(), Node: host}
	for _, c := range n.containers {
		n.readUsage(c)
	}
	for _, known := range n.shims {
		if p, err := measure.ReadProcess("/", known.Pid); err == nil { // else it has ended, or there is none
			known.CPU, known.RSS = p.CPU, p.RSS
			known.Outdated = known.Upgradable() && machine.Root("/").Outdated(known.Pid)
		}
	}
	s.Pods = n.pods()
	return s, nil
}

// list asks containerd for all containers and sandboxes.
func (n *Node) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	n.containers, n.sandboxes, n.shims = nil, nil, map[string]*shimState{}
	names, err := n.namespaces(ctx)
	if err != nil {
		return err
	}
	for _, namespace := range names {
		err := n.eachContainer(ctx, namespace, func(c *containersapi.Container) { n.add(namespace, c) })
		if err == nil {
			err = n.addSandboxes(ctx, namespace)
		}
		if err != nil && !errdefs.IsNotFound(err) { // the namespace is gone
			return err
		}
	}
	return nil
}

// add adds what containerd has about a container.
func (n *Node) add(namespace string, from *containersapi.Container) {
	at := placeOf(from)
	c := &container{sandboxID: at.sandbox, pod: at.pod}
	c.Namespace, c.ID, c.Name, c.Image = namespace, from.ID, cmp.Or(at.name, from.ID), from.Image
	c.Runtime, c.State = runtimeName(from.GetRuntime().GetName()), NoTask
	c.Pause = from.Labels[criKind] == "sandbox"
	if c.shim = n.findShim(key{namespace, from.ID}, c.Runtime); c.shim != nil {
		c.shim.containers = append(c.shim.containers, c)
	}
	n.containers = append(n.containers, c)
}

func (n *Node) addSandboxes(ctx context.Context, namespace string) error {
	list, err := n.listSandboxes(ctx, namespace)
	for _, s := range list {
		k, runtime := key{namespace, s.SandboxID}, runtimeName(s.GetRuntime().GetName())
		n.sandboxes = append(n.sandboxes, &sandbox{k, runtime, podOfSandbox(s), n.findShim(k, runtime)})
	}
	return err
}

// findShim returns the shim of a container or a sandbox; nil if it has no bundle, so that nothing runs.
func (n *Node) findShim(k key, runtime string) *shimState {
	a, err := shim.Find(n.config.State, k.namespace, k.id)
	if errors.Is(err, shim.ErrNoBundle) {
		return nil
	}
	path := a.Path
	if err != nil {
		path = "?" + k.namespace + "/" + k.id // a key for what is no path
	}
	s := n.shims[path]
	if s == nil {
		s = &shimState{Shim: Shim{Runtime: runtime, Address: a.Path}, address: a, other: errdefs.IsNotImplemented(err)}
		if err != nil && !s.other {
			s.Error = err.Error()
		}
		n.shims[path] = s
	}
	s.keys = append(s.keys, k)
	return s
}

// isGone reports whether no bundle names a shim any more.
func (n *Node) isGone(s *shimState) bool {
	return !slices.ContainsFunc(s.keys, func(k key) bool {
		_, err := shim.Bundle(n.config.State, k.namespace, k.id)
		return err == nil
	})
}

// readUsage reads a container's cgroup.
func (n *Node) readUsage(c *container) {
	if c.State == NoTask {
		return
	}
	dirs := n.hierarchies.Of("/", c.livingPid())
	if c.cgroup != "" {
		dirs = n.hierarchies.Below(c.cgroup, dirs)
	}
	c.ReadAt = time.Now()
	c.Usage, _ = measure.Read(dirs) // nothing of a cgroup that is gone
}

// askShims asks all shims at the same time, with one deadline.
func (n *Node) askShims(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	var work sync.WaitGroup
	for _, s := range n.shims {
		work.Go(func() { n.askShim(ctx, s) })
	}
	work.Wait()
}

// askShim asks one shim, or containerd about its containers if it is another runtime's. Only the deadline ends a call
// that hangs.
func (n *Node) askShim(ctx context.Context, s *shimState) {
	if s.Error == "" && s.Address != "" {
		switch err := s.inspect(ctx); {
		case errors.Is(err, context.DeadlineExceeded):
			s.Error = fmt.Sprintf("the shim does not answer within %v", n.config.Timeout)
		case err != nil:
			s.Error = err.Error()
		}
	}
	if s.Error != "" && n.isGone(s) {
		s.Shim = Shim{Runtime: s.Runtime}
		return
	}
	for _, c := range s.containers {
		i := slices.IndexFunc(s.answer.Containers, func(a inspect.ContainerInfo) bool { return a.ID == c.ID })
		switch {
		case s.Error != "":
			c.State, c.Error = Dead, s.Error
		case s.other:
			n.askTask(ctx, &c.Container)
		case i >= 0: // else it was deleted, or is being created
			c.take(&s.answer.Containers[i])
		}
	}
}

func (s *shimState) inspect(ctx context.Context) error {
	client, err := shim.Dial(ctx, s.address)
	if err != nil {
		return err
	}
	defer client.Close()
	if p, err := measure.ReadProcess("/", client.Peer); err == nil && strings.HasPrefix(p.Name, "containerd-shim") {
		s.Pid = client.Peer // for one that does not answer
	}
	s.answer, err = client.Inspect(ctx, "")
	if s.other = errdefs.IsNotImplemented(err); s.other {
		s.Pid, _, err = client.Pid(ctx, s.keys[0].id)
	} else if err == nil {
		s.Pid, s.Version = s.answer.Shim.Pid, s.answer.Shim.Version
	}
	return err
}

func (c *container) take(a *inspect.ContainerInfo) {
	c.State, c.Pid, c.cgroup = State(a.State), a.Pid, a.Cgroup
	c.Execs, c.ExecsStarted, c.ExecsKnown, c.Idle = a.Execs.Known, a.Execs.Started, true, a.Idle
	if a.Exit != nil {
		c.ExitStatus = uint32(a.Exit.Status)
	}
	c.CPUSet = a.CPUSet
}
