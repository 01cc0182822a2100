// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package upgrade has shims replace their programs by the installed one, under their containers.
//
// Each shim is asked by a goroutine of its own, which has ended when the command returns. After a signal no other shim
// is asked, and the answers of those that were are awaited: they go on anyway.
package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// leastTimeout is for an answer: a shim waits twice 5 s for what is under way, and 10 s for the installed program.
const leastTimeout = 30 * time.Second

const long = `Have shims replace their program by the installed one, in place: containers, their output
and whoever is attached do not notice. A shim first has the installed program check its
state. If that refuses, or if the shim is busy for more than 5 s, nothing changes: try it
again later. docs/upgrade.md says more.

CONTAINER is the id of a container or a sandbox, or its beginning. --namespace alone means
all of a namespace, and --all all of the node. Each shim is asked once, and has 30s to
answer, or --timeout if that is longer.

Exit status: 0 each shim was upgraded, or runs the installed program already · 1 some were
not, or upgrade itself failed`

// run is an upgrade of shims.
type run struct {
	all, dryRun     bool
	jobs, stopAfter uint
	timeout         time.Duration
	report          func(*Target) // what became of one shim; is called for one at a time
}

// Command is "sandboxctl upgrade".
func Command(o *cli.Options) *cobra.Command {
	r := &run{}
	cmd := &cobra.Command{
		Use:   "upgrade [CONTAINER...]",
		Short: "Upgrade running shims in place",
		Long:  long,
		Example: "  sandboxctl upgrade web\n  sandboxctl upgrade --all --dry-run\n" +
			"  sandboxctl upgrade -n k8s.io --stop-after 1",
		RunE: func(cmd *cobra.Command, ids []string) error {
			switch {
			case r.all == (len(ids) > 0 || o.Namespace != ""):
				return errors.New("upgrade: needs ids of containers, --namespace, or --all without these")
			case r.jobs == 0:
				return errors.New("--jobs 0: must be more than 0")
			}
			n, err := o.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer n.Close() //nolint:errcheck // what was asked is answered
			s, err := n.Snapshot(cmd.Context())
			if err != nil {
				return err
			}
			list, err := targets(s, ids)
			if err != nil {
				return err
			}
			r.timeout, r.report = max(o.Timeout, leastTimeout), func(t *Target) {
				if !o.JSON() {
					writeLine(cmd.OutOrStdout(), t)
				}
			}
			r.each(cmd.Context(), list)
			return finish(cmd.OutOrStdout(), o, list)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&r.all, "all", false, "all shims of the node")
	f.BoolVar(&r.dryRun, "dry-run", false, "only have the installed program check the state of each shim")
	f.UintVar(&r.jobs, "jobs", 4, "how many shims are upgraded at the same time")
	f.UintVar(&r.stopAfter, "stop-after", 0, "ask no more shims after so many failures (never if 0)")
	return cmd
}

// Result is what became of a shim.
type Result string

// Results.
const (
	Upgraded Result = "upgraded"
	Ready    Result = "ready"   // in a dry run: nothing is in the way
	Current  Result = "current" // it runs the installed program already
	Ended    Result = "ended"   // with its containers, before it was asked
	Failed   Result = "failed"
	NotAsked Result = "not asked"
)

// Target is a shim.
type Target struct {
	Namespace  string    `json:"namespace"`
	ID         string    `json:"id"`   // of its sandbox, or its container
	Name       string    `json:"name"` // of its Kubernetes pod; else the id
	Shim       node.Shim `json:"shim"` // as it was before
	NewVersion string    `json:"new_version,omitempty"`
	Result     Result    `json:"result"`
	Error      string    `json:"error,omitempty"`
}

// targets returns the shims of the containers and sandboxes with the ids, or of all, each once.
func targets(s *node.Snapshot, ids []string) ([]Target, error) {
	meant := map[*node.Pod]bool{}
	for _, id := range ids {
		namespace, full, err := s.Find(id)
		if err != nil {
			return nil, err
		}
		p := s.Pod(namespace, full)
		if meant[p] = true; !p.Shim.Upgradable() {
			return nil, fmt.Errorf("%s: no shim of io.containerd.sandbox.v1 runs it", full)
		}
	}
	list, known := []Target{}, map[string]bool{} // in JSON a list, too, and not null
	for i := range s.Pods {
		p := &s.Pods[i]
		key := cmp.Or(p.Shim.Address, p.Namespace+"/"+p.ID)
		if p.Shim.Upgradable() && !known[key] && (len(ids) == 0 || meant[p]) {
			known[key] = true
			list = append(list, Target{Namespace: p.Namespace, ID: p.ID, Name: p.Name, Shim: p.Shim, Result: NotAsked})
		}
	}
	return list, nil
}

// each asks all shims, some at a time, until the context ends or too many have failed.
func (r *run) each(ctx context.Context, list []Target) {
	slots := make(chan struct{}, r.jobs)
	var failed atomic.Uint64
	var reports sync.Mutex // guards the calls of report
	var work sync.WaitGroup
	for i := range list {
		slots <- struct{}{}
		if ctx.Err() != nil || r.stopAfter > 0 && failed.Load() >= uint64(r.stopAfter) {
			break
		}
		work.Go(func() {
			defer func() { <-slots }()
			t := &list[i]
			if r.ask(context.WithoutCancel(ctx), t); t.Result == Failed {
				failed.Add(1)
			}
			reports.Lock()
			defer reports.Unlock()
			r.report(t)
		})
	}
	work.Wait()
}

// ask asks one shim, and fills in what became of it.
func (r *run) ask(ctx context.Context, t *Target) {
	if t.Shim.Error != "" { // it did not answer before
		t.Result, t.Error = Failed, t.Shim.Error
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var version string
	var upgraded bool
	client, err := shim.Dial(ctx, shim.Address{Path: t.Shim.Address})
	if err == nil {
		defer client.Close()
		version, upgraded, err = client.Upgrade(ctx, r.dryRun)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		t.Result = Ended
	case errdefs.IsNotImplemented(err):
		t.Result, t.Error = Failed, "this shim is older than 0.2.0 and cannot be upgraded in place"
	case err != nil && ctx.Err() != nil:
		t.Result, t.Error = Failed, fmt.Sprintf("the shim does not answer within %v", r.timeout)
	case err != nil:
		t.Result, t.Error = Failed, err.Error()
	case !upgraded:
		t.Result = Current
	case r.dryRun:
		t.Result = Ready
	default:
		t.Result, t.NewVersion = Upgraded, version
	}
}

// writeLine prints what became of a shim: 25672  upgraded  default/web  0.1.0 -> 0.2.0.
func writeLine(w io.Writer, t *Target) {
	name, detail := t.Namespace+"/"+t.ID, cmp.Or(t.Shim.Version, "-")
	if t.Name != t.ID {
		name += " (" + t.Name + ")"
	}
	if t.NewVersion != "" {
		detail += " -> " + t.NewVersion
	}
	if t.Error != "" {
		detail += ": " + t.Error
	}
	// Whoever does not get the lines does not get the summary either, which is an error.
	_, _ = fmt.Fprintf(w, "%-7d  %-8s  %-24s  %s\n", t.Shim.Pid, t.Result, cli.Printable(name), cli.Printable(detail))
}

// finish prints the summary, or all as JSON, and returns the exit status.
func finish(w io.Writer, o *cli.Options, list []Target) (err error) {
	counts := map[Result]int{}
	for _, t := range list {
		counts[t.Result]++
	}
	var parts []string
	for _, r := range []Result{Upgraded, Ready, Current, Ended, Failed, NotAsked} {
		if counts[r] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[r], r))
		}
	}
	if o.JSON() {
		err = cli.WriteJSON(w, map[string]any{"shims": list})
	} else {
		_, err = fmt.Fprintf(w, "shims: %s\n", cmp.Or(strings.Join(parts, ", "), "none"))
	}
	if err == nil && counts[Failed]+counts[NotAsked] > 0 {
		return cli.Exit(1)
	}
	return err
}
