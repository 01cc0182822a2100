// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package eventlog keeps the events of tasks in the order in which they came, and prints them as one line of text that
// a test compares: "create c1 | start c1 | exit c1 137 | delete c1". A Log may be used by any number of goroutines.
package eventlog

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/api/events"
)

// Entry is one event as it was received.
type Entry struct {
	Namespace string
	Topic     string
	Event     any // a message of containerd's api/events, by pointer
}

// Log is an ordered list of entries that only grows. The zero value is not ready: use New.
type Log struct {
	mu      sync.Mutex
	entries []Entry
	grown   chan struct{} // closed and replaced by each Add
}

// New returns an empty log.
func New() *Log { return &Log{grown: make(chan struct{})} }

// Add appends e.
func (l *Log) Add(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
	close(l.grown)
	l.grown = make(chan struct{})
}

// snapshot returns what there is and a channel that is closed when there is more.
func (l *Log) snapshot() ([]Entry, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.entries), l.grown
}

// Entries returns the entries of one container; all of them when containerID is empty.
func (l *Log) Entries(containerID string) []Entry {
	all, _ := l.snapshot()
	if containerID == "" {
		return all
	}
	var of []Entry
	for _, e := range all {
		if Container(e.Event) == containerID {
			of = append(of, e)
		}
	}
	return of
}

// Text prints the entries of one container, or of all when containerID is empty.
func (l *Log) Text(containerID string) string {
	var words []string
	for _, e := range l.Entries(containerID) {
		words = append(words, Describe(e.Event))
	}
	return strings.Join(words, " | ")
}

// String prints all entries.
func (l *Log) String() string { return l.Text("") }

// Wait returns once done accepts the text of a container's events. The error names the last text.
func (l *Log) Wait(ctx context.Context, containerID string, done func(text string) bool) error {
	for {
		_, grown := l.snapshot()
		text := l.Text(containerID)
		if done(text) {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return fmt.Errorf("events of %q: %q: %w", containerID, text, ctx.Err())
		}
	}
}

// Container returns the id of the container that an event is about, or "" when it is no event of a task.
func Container(event any) string {
	switch e := event.(type) {
	case interface{ GetContainerID() string }:
		return e.GetContainerID()
	default:
		return ""
	}
}

// Describe prints one event: a word and the id of the process it is about. Exits carry their status unless it is 0.
func Describe(event any) string {
	switch e := event.(type) {
	case *events.TaskCreate:
		return "create " + e.GetContainerID()
	case *events.TaskStart:
		return "start " + e.GetContainerID()
	case *events.TaskExecAdded:
		return "exec-added " + e.GetExecID()
	case *events.TaskExecStarted:
		return "exec-start " + e.GetExecID()
	case *events.TaskExit:
		if e.GetExitStatus() == 0 {
			return "exit " + e.GetID()
		}
		return fmt.Sprintf("exit %s %d", e.GetID(), e.GetExitStatus())
	case *events.TaskDelete:
		if id := e.GetID(); id != "" && id != e.GetContainerID() {
			return "delete " + id
		}
		return "delete " + e.GetContainerID()
	case *events.TaskOOM:
		return "oom " + e.GetContainerID()
	case *events.TaskPaused:
		return "paused " + e.GetContainerID()
	case *events.TaskResumed:
		return "resumed " + e.GetContainerID()
	case *events.TaskCheckpointed:
		return "checkpointed " + e.GetContainerID()
	default:
		return fmt.Sprintf("%T", event)
	}
}
