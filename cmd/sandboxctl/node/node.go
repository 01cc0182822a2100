// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package node reports what the containers of one containerd are and use: it asks containerd which there are and their
// shims what they know, and reads the cgroups itself, which costs neither of them anything.
//
// A [Node] may be asked once, or once a second. From the second time on it follows containerd's events, and asks again
// only about containers that these concern, and about all once in [refreshAfter].
//
// One goroutine reads the events, and ends with Close. mu guards what it passes on.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
	"sandbox.internal/shim/pkg/inspect"
)

const (
	// refreshAfter is when all is asked again, whatever the events said.
	refreshAfter = 2 * time.Minute
	// askAgainAfter is when a shim that did not answer is asked again.
	askAgainAfter = 15 * time.Second
	// atOnce is how many shims are asked at the same time: more than a node has pods, since each that hangs holds one
	// place until the deadline.
	atOnce = 512
)

// Config says which containerd.
type Config struct {
	Address   string        // socket of containerd
	State     string        // its state directory
	Namespace string        // of containers; empty: all
	Timeout   time.Duration // for containerd, and the same again for all shims
}

// Node is a connection to a containerd, and what was learned through it. Its methods are for one goroutine.
type Node struct {
	config      Config
	conn        *grpc.ClientConn
	hierarchies measure.Hierarchies

	containers map[key]*container
	sandboxes  map[key]*sandbox
	shims      map[string]*shimState // by the path of the socket
	refreshed  time.Time             // zero: never
	asked      int                   // how many snapshots were taken
	scarce     bool                  // descriptors are: no file of a cgroup stays open
	watch      *watch                // nil: events are not followed
}

// key names a container or a sandbox.
type key struct{ namespace, id string }

// container is a Container and where it belongs.
type container struct {
	Container
	sandboxID string
	pod       string // name
	created   time.Time
	address   string         // of its shim; empty: it has none
	cgroup    string         // as its shim says; empty: it does not
	group     *measure.Group // nil: it has none
	groupPid  int            // the Pid for which it was found
}

// sandbox is one of the Sandbox API.
type sandbox struct {
	key
	runtime, pod, address string
}

// shimState is what is known of a shim.
type shimState struct {
	Shim
	address shim.Address
	other   bool // it is not one of this project's
	gone    bool // no bundle names it any more
	answer  inspect.Answer
	execs   []shim.Execs // that it has counted
	stat    *os.File     // of its process; nil: not open
	asked   time.Time
}

// Open connects to containerd.
func Open(ctx context.Context, c Config) (*Node, error) {
	conn, err := Dial(ctx, c)
	if err != nil {
		return nil, err
	}
	h, err := measure.FindHierarchies()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Node{
		config: c, conn: conn, hierarchies: h,
		containers: map[key]*container{}, sandboxes: map[key]*sandbox{}, shims: map[string]*shimState{},
	}, nil
}

// Snapshot asks and reads. It takes at most Config.Timeout for containerd, the same again for the shims, and the time
// that reading takes. What is wrong with one container or shim is in its Error; an error is that of containerd.
func (n *Node) Snapshot(ctx context.Context) (*Snapshot, error) {
	n.asked++
	if err := n.update(ctx); err != nil {
		n.refreshed = time.Time{} // the events were taken, and may not have been applied
		return nil, err
	}
	host, err := measure.ReadHost(n.hierarchies)
	if errors.Is(err, unix.EMFILE) { // the files of all containers are more than this process may have open
		n.scarce = true
		n.closeGroups()
		host, err = measure.ReadHost(n.hierarchies)
	}
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Time: time.Now(), Node: host}
	for _, c := range n.containers {
		n.readUsage(c)
		if n.scarce {
			c.group.Close()
		}
	}
	for _, known := range n.shims {
		known.readUsage()
	}
	s.Pods = n.pods()
	if n.asked == 1 { // files stay open for those who ask again
		n.closeGroups()
		n.closeShims()
	}
	return s, nil
}

// update learns what has changed since the last snapshot.
func (n *Node) update(ctx context.Context) error {
	if n.asked == 1 {
		return n.refresh(ctx)
	}
	if n.watch == nil || n.watch.ended() {
		n.watch.close()
		n.watch = n.subscribe()
		n.refreshed = time.Time{} // events may have been missed
	}
	changed := n.watch.take()
	if changed.all || time.Since(n.refreshed) > refreshAfter {
		return n.refresh(ctx)
	}
	again := map[string]bool{} // addresses of shims
	if len(changed.containers) > 0 {
		if err := n.refreshSome(ctx, changed.containers, again); err != nil {
			return err
		}
	} else if err := n.ping(ctx); err != nil {
		return err
	}
	for address, known := range n.shims {
		if known.Error != "" && time.Since(known.asked) > askAgainAfter {
			again[address] = true
		}
	}
	for address := range again {
		n.shims[address].close()
		delete(n.shims, address)
	}
	count := map[string]bool{} // addresses of shims
	for k := range changed.execs {
		if c := n.containers[k]; c != nil {
			count[c.address] = true
		}
	}
	n.askAll(ctx, func(c *container) bool { return changed.containers[c.key()] || again[c.address] },
		func(address string) bool { return count[address] })
	return ctx.Err()
}

// refresh asks for everything.
func (n *Node) refresh(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	names, err := n.namespaces(asking)
	if err != nil {
		return err
	}
	seen := map[key]bool{}
	for _, namespace := range names {
		err := n.eachContainer(asking, namespace, func(c *containersapi.Container) {
			seen[n.keep(namespace, c).key()] = true
		})
		if err != nil && !errdefs.IsNotFound(err) { // the namespace is gone
			return err
		}
	}
	for k := range n.containers {
		if !seen[k] {
			n.forget(k)
		}
	}
	if err := n.refreshSandboxes(asking, names); err != nil {
		return err
	}
	n.closeShims()
	clear(n.shims)
	n.askAll(ctx, func(*container) bool { return true }, func(string) bool { return true })
	if err := ctx.Err(); err != nil { // the answers of shims are cut off, too
		return err
	}
	n.refreshed = time.Now()
	return nil
}

// refreshSome asks containerd for some containers again, and for all sandboxes. It adds to again the addresses of the
// shims that have to be asked.
func (n *Node) refreshSome(ctx context.Context, keys map[key]bool, again map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	for k := range keys {
		c, err := n.container(ctx, k)
		if err != nil {
			return err
		}
		if c == nil {
			n.forget(k)
			continue
		}
		again[n.keep(k.namespace, c).address] = true
	}
	names, err := n.namespaces(ctx)
	if err == nil {
		err = n.refreshSandboxes(ctx, names)
	}
	delete(again, "")
	return err
}

// keep stores what containerd has about a container.
func (n *Node) keep(namespace string, from *containersapi.Container) *container {
	k := key{namespace, from.ID}
	c := n.containers[k]
	if c == nil || !c.created.Equal(from.CreatedAt.AsTime()) {
		n.forget(k)
		c = &container{created: from.CreatedAt.AsTime()}
		n.containers[k] = c
		c.Namespace, c.ID = namespace, from.ID
		at := placeOf(from)
		c.Name, c.Image = cmp.Or(at.name, from.ID), from.Image
		c.Runtime, c.State = runtimeName(from.GetRuntime().GetName()), NoTask
		c.Pause = from.Labels[criKind] == "sandbox"
		c.sandboxID, c.pod = at.sandbox, at.pod
	}
	c.address = n.addressOf(k)
	return c
}

// addressOf returns where the shim of a container or a sandbox listens; empty if it has no bundle. An unusable address
// is one too: askShim says why.
func (n *Node) addressOf(k key) string {
	a, err := shim.Find(n.config.State, k.namespace, k.id)
	if errors.Is(err, shim.ErrNoBundle) {
		return ""
	}
	if err != nil {
		return "?" + k.namespace + "/" + k.id // a key for what is no path
	}
	return a.Path
}

func (n *Node) refreshSandboxes(ctx context.Context, names []string) error {
	clear(n.sandboxes)
	for _, namespace := range names {
		list, err := n.listSandboxes(ctx, namespace)
		if err != nil && !errdefs.IsNotFound(err) { // the namespace is gone
			return err
		}
		for _, s := range list {
			k := key{namespace, s.SandboxID}
			n.sandboxes[k] = &sandbox{
				key: k, runtime: runtimeName(s.GetRuntime().GetName()), pod: podOfSandbox(s), address: n.addressOf(k),
			}
		}
	}
	return nil
}

func (n *Node) forget(k key) {
	if c := n.containers[k]; c != nil {
		c.group.Close()
		delete(n.containers, k)
	}
}

func (c *container) key() key { return key{c.Namespace, c.ID} }

// readUsage reads a container's cgroup.
func (n *Node) readUsage(c *container) {
	if c.group == nil || c.groupPid != c.Pid {
		c.group.Close()
		c.group, c.groupPid = nil, c.Pid
		dirs, _ := n.hierarchies.Of(c.livingPid()) // it may have ended
		if c.cgroup != "" {
			dirs = n.hierarchies.Below(c.cgroup, dirs)
		}
		if len(dirs) > 0 {
			c.group = measure.NewGroup(dirs)
		}
	}
	c.Usage = measure.Usage{}
	if c.group == nil || c.State == NoTask {
		return
	}
	c.ReadAt = time.Now()
	u, ok := c.group.Read()
	if !ok {
		c.group = nil
	}
	c.Usage = u
}

func (s *shimState) readUsage() {
	s.CPU, s.RSS = 0, 0
	if s.Pid == 0 {
		return
	}
	if s.stat == nil {
		var err error
		if s.stat, err = os.Open(fmt.Sprintf("/proc/%d/stat", s.Pid)); err != nil { // it has ended
			return
		}
	}
	const most = 1 << 10 // a process has some 300 bytes
	text := make([]byte, most)
	size, _ := s.stat.ReadAt(text, 0) // nothing of one that has ended
	if p, err := measure.ParseProcess(text[:size]); err == nil {
		s.CPU, s.RSS = p.CPU, p.RSS
	}
}

// close may be called for nil.
func (s *shimState) close() {
	if s != nil && s.stat != nil {
		_ = s.stat.Close() // read only
		s.stat = nil
	}
}
