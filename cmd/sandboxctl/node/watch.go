// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"

	eventtypes "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/typeurl/v2"
)

// watch follows containerd's events.
type watch struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	mu sync.Mutex
	// +checklocks:mu
	changed changes
}

// changes are what events have reported since the last take.
type changes struct {
	containers map[key]bool // to be asked again
	execs      map[key]bool // of these containers, to be counted again
	all        bool         // there were more than mostChanges
}

// mostChanges is how many containers are tracked while nobody asks. Above that all are asked for again.
const mostChanges = 4096

func noChanges() changes {
	return changes{containers: map[key]bool{}, execs: map[key]bool{}}
}

// subscribe starts the goroutine that reads events. It ends with close, or when containerd does.
func (n *Node) subscribe() *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{cancel: cancel, done: make(chan struct{}), changed: noChanges()}
	of := ""
	if n.config.Namespace != "" {
		of = ",namespace==" + n.config.Namespace
	}
	request := &eventsapi.SubscribeRequest{
		Filters: []string{`topic~="^/tasks/"` + of, `topic~="^/containers/"` + of, `topic~="^/sandbox"` + of},
	}
	stream, err := eventsapi.NewEventsClient(n.conn).Subscribe(ctx, request)
	go func() {
		defer close(w.done)
		for err == nil {
			var e *types.Envelope
			if e, err = stream.Recv(); err == nil {
				w.add(e)
			}
		}
	}()
	return w
}

// ended reports whether containerd has closed the stream.
func (w *watch) ended() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// close may be called for a watch that is nil.
func (w *watch) close() {
	if w != nil {
		w.cancel()
		<-w.done
	}
}

func (w *watch) take() changes {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.changed
	w.changed = noChanges()
	return taken
}

func (w *watch) add(e *types.Envelope) {
	if e.GetEvent() == nil {
		return
	}
	decoded, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		return // an event of somebody else
	}
	id, change := changeBy(decoded)
	k := key{e.Namespace, id}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch change {
	case ofContainer:
		w.changed.containers[k] = true
	case ofExecs:
		w.changed.execs[k] = true
	case nothing:
	}
	if len(w.changed.containers)+len(w.changed.execs) > mostChanges {
		w.changed.all = true
		clear(w.changed.containers)
		clear(w.changed.execs)
	}
}

// change is what an event changes.
type change int

const (
	nothing     change = iota
	ofContainer        // or of a sandbox: all of them are asked for again then
	ofExecs
)

// changeBy returns which container an event changes, and what of it.
func changeBy(event any) (id string, of change) {
	switch e := event.(type) {
	case *eventtypes.TaskExecStarted:
		return e.ContainerID, ofExecs
	case *eventtypes.TaskExit:
		if e.ID != e.ContainerID {
			return e.ContainerID, ofExecs
		}
		return e.ContainerID, ofContainer
	case *eventtypes.TaskExecAdded, *eventtypes.TaskOOM:
		return "", nothing
	case *eventtypes.TaskDelete:
		if e.ID != "" && e.ID != e.ContainerID { // an exec
			return "", nothing
		}
		return e.ContainerID, ofContainer
	case interface{ GetContainerID() string }:
		return e.GetContainerID(), ofContainer
	case *eventtypes.ContainerCreate:
		return e.ID, ofContainer
	case *eventtypes.ContainerUpdate:
		return e.ID, ofContainer
	case *eventtypes.ContainerDelete:
		return e.ID, ofContainer
	case interface{ GetSandboxID() string }:
		return e.GetSandboxID(), ofContainer
	}
	return "", nothing
}
