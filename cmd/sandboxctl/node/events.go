// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
)

// Ours is the runtime type of this project's shim, and the name of its binary, by either of which containers name it.
const (
	Ours       = "io.containerd.sandbox.v1"
	oursBinary = "containerd-shim-sandbox-v1"
)

// Event is one that containerd has published.
type Event struct {
	Time      time.Time `json:"time"`
	Namespace string    `json:"namespace"`
	Topic     string    `json:"topic"` // /tasks/start
	Container string    `json:"container,omitempty"`
	Runtime   string    `json:"runtime,omitempty"` // empty: it is not known
	Event     any       `json:"event"`             // containerd's message
}

// Events calls tell for each event of tasks from now on, until ctx ends or tell returns an error. Events of runtimes
// other than this project's are included if all is set.
func (n *Node) Events(ctx context.Context, all bool, tell func(Event) error) error {
	filter := `topic~="^/tasks/"`
	if n.config.Namespace != "" {
		filter += ",namespace==" + n.config.Namespace
	}
	stream, err := eventsapi.NewEventsClient(n.conn).Subscribe(ctx, &eventsapi.SubscribeRequest{Filters: []string{filter}})
	if err != nil {
		return fmt.Errorf("containerd: events: %w", errgrpc.ToNative(err))
	}
	runtimes := map[key]string{}
	for {
		e, err := stream.Recv()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("containerd: events: %w", errgrpc.ToNative(err))
		}
		if e.GetEvent() == nil {
			continue
		}
		decoded, err := typeurl.UnmarshalAny(e.Event)
		if err != nil {
			return fmt.Errorf("event %s: %w", e.Topic, err)
		}
		told := Event{Time: e.Timestamp.AsTime(), Namespace: e.Namespace, Topic: e.Topic, Event: decoded}
		if d, ok := decoded.(interface{ GetContainerID() string }); ok {
			told.Container = d.GetContainerID()
			told.Runtime = n.runtimeOf(ctx, key{e.Namespace, told.Container}, runtimes)
		}
		if !all && told.Runtime != "" && told.Runtime != Ours && told.Runtime != oursBinary {
			continue
		}
		if err := tell(told); err != nil {
			return err
		}
		if d, ok := decoded.(*eventtypes.TaskDelete); ok && (d.ID == "" || d.ID == d.ContainerID) {
			delete(runtimes, key{e.Namespace, told.Container})
		}
	}
}

// runtimeOf caches what it learns: a container may be gone when its last event comes.
func (n *Node) runtimeOf(ctx context.Context, k key, known map[key]string) string {
	if name, ok := known[k]; ok {
		return name
	}
	name := ""
	if c, err := n.container(ctx, k); err == nil && c != nil {
		name = runtimeName(c.GetRuntime().GetName())
	}
	known[k] = name
	return name
}

// String returns the event as one line for people.
func (e Event) String() string {
	var detail string
	switch d := e.Event.(type) {
	case *eventtypes.TaskCreate:
		detail = fmt.Sprintf("pid %d", d.Pid)
	case *eventtypes.TaskStart:
		detail = fmt.Sprintf("pid %d", d.Pid)
	case *eventtypes.TaskExit:
		detail = fmt.Sprintf("status %d, pid %d", d.ExitStatus, d.Pid)
		if d.ID != d.ContainerID {
			detail = "exec " + d.ID + ", " + detail
		}
	case *eventtypes.TaskDelete:
		detail = fmt.Sprintf("status %d, pid %d", d.ExitStatus, d.Pid)
	case *eventtypes.TaskExecAdded:
		detail = "exec " + d.ExecID
	case *eventtypes.TaskExecStarted:
		detail = fmt.Sprintf("exec %s, pid %d", d.ExecID, d.Pid)
	case *eventtypes.TaskCheckpointed:
		detail = d.Checkpoint
	}
	return strings.TrimRight(fmt.Sprintf("%s  %s  %-20s %s  %s", e.Time.Local().Format("15:04:05.000"), e.Namespace,
		strings.TrimPrefix(e.Topic, "/tasks/"), e.Container, detail), " ")
}
