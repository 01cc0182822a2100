// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"cmp"
	"context"
	"errors"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// goneLimit is how long what a round made may stay after its end: nobody waits for a shim to end.
var goneLimit = harness.Slow(15 * time.Second)

// check returns what is wrong at the end of a round.
func (e *Env) check(ctx context.Context) []Violation {
	var found []Violation
	_ = harness.PollFor(goneLimit, func() error { // what is missing then is a violation
		if len(e.order.unfinished(e.stays)) > 0 {
			return errors.New("events are missing")
		}
		return nil
	})
	found = append(found, e.order.unfinished(e.stays)...)
	found = append(found, e.order.take()...)
	found = append(found, e.harmed(ctx)...)
	found = append(found, e.leaks()...)
	e.order.forget(e.stays)
	return found
}

// scope is where anything may be that the worker has made.
func (e *Env) scope() harness.Scope {
	s := e.daemon.Scope(e.name)
	s.Dirs = append(s.Dirs, e.daemon.Fifos, e.bundle(""),
		filepath.Join(e.daemon.Dir, "root", "io.containerd.runtime.v2.task", e.name))
	return s
}

// bundle is the directory of a container.
func (e *Env) bundle(id string) string {
	return filepath.Join(e.daemon.State, "io.containerd.runtime.v2.task", e.name, id)
}

// process is the beginning of the text of a leak that is one. The rest, its state and arguments, changes while it stays
// the same leak: an upgrade changes the arguments of a shim.
var process = regexp.MustCompile(`^process \d+ `)

// present lists all that is there, with a text for each.
func (e *Env) present() map[string]string {
	there := map[string]string{}
	for _, text := range e.scope().Leaks() {
		there[cmp.Or(process.FindString(text), text)] = text
	}
	for _, s := range e.stayers {
		for _, z := range harness.Zombies(s.shim) {
			text := "zombie of the shim of " + s.id + ": " + z.String()
			there[text] = text
		}
	}
	for _, text := range e.books() {
		there[text] = text
	}
	return there
}

// books lists what containerd, CNI and the network know of.
func (e *Env) books() []string {
	var list []string
	note := func(kind string, names []string, err error) {
		if err != nil {
			list = append(list, kind+": "+err.Error())
		}
		for _, name := range names {
			list = append(list, kind+" "+name)
		}
	}
	for _, namespace := range []string{e.name, podNamespace} {
		ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), namespace), callLimit)
		defer cancel()
		containers, err := e.client.Containers(ctx)
		var ids []string
		for _, c := range containers {
			ids = append(ids, c.ID())
		}
		note("container in containerd's store", ids, err)
		sandboxes, err := e.client.SandboxStore().List(ctx)
		ids = nil
		for _, s := range sandboxes {
			ids = append(ids, s.ID)
		}
		note("sandbox in containerd's store", ids, err)
	}
	addresses, err := e.daemon.Addresses()
	note("address of a pod", addresses, err)
	links, err := net.Interfaces()
	var names []string
	for _, l := range links {
		if l.Name != "lo" && l.Name != cri.Bridge {
			names = append(names, l.Name)
		}
	}
	note("network interface", names, err)
	return list
}

// leaks lists what was not there before the first round and does not go.
func (e *Env) leaks() []Violation {
	var list []string
	_ = harness.PollFor(goneLimit, func() error { // what is there then is a violation
		list = list[:0]
		for name, text := range e.present() {
			if _, ok := e.baseline[name]; !ok {
				list = append(list, text)
			}
		}
		if len(list) > 0 {
			return errors.New(strings.Join(list, "\n"))
		}
		return nil
	})
	slices.Sort(list)
	found := make([]Violation, len(list))
	for i, text := range list {
		found[i] = Violation{Kind: Leak, Text: text}
	}
	return found
}
