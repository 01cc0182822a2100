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

// changes are what events told since they were taken.
type changes struct {
	containers map[key]bool // to be asked again
	execs      []execEvent
}

type execEvent struct {
	key
	started bool // else it exited
}

// subscribe starts the goroutine that reads events. It ends with close, or when containerd does.
func (n *Node) subscribe() *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{cancel: cancel, done: make(chan struct{})}
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

// ended reports whether containerd has hung up.
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
	w.changed = changes{}
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
	w.mu.Lock()
	defer w.mu.Unlock()
	dirty := func(id string) {
		if w.changed.containers == nil {
			w.changed.containers = map[key]bool{}
		}
		w.changed.containers[key{e.Namespace, id}] = true
	}
	exec := func(id string, started bool) {
		w.changed.execs = append(w.changed.execs, execEvent{key{e.Namespace, id}, started})
	}
	switch d := decoded.(type) {
	case *eventtypes.TaskExecStarted:
		exec(d.ContainerID, true)
	case *eventtypes.TaskExit:
		if d.ID != d.ContainerID {
			exec(d.ContainerID, false)
		} else {
			dirty(d.ContainerID)
		}
	case *eventtypes.TaskExecAdded, *eventtypes.TaskOOM: // which the cgroup counts
	case *eventtypes.TaskDelete:
		if d.ID == "" || d.ID == d.ContainerID { // else of an exec
			dirty(d.ContainerID)
		}
	case interface{ GetContainerID() string }:
		dirty(d.GetContainerID())
	case *eventtypes.ContainerCreate:
		dirty(d.ID)
	case *eventtypes.ContainerUpdate:
		dirty(d.ID)
	case *eventtypes.ContainerDelete:
		dirty(d.ID)
	case interface{ GetSandboxID() string }:
		dirty(d.GetSandboxID()) // of which there is no container: all sandboxes are asked for again
	}
}
