// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/containerd/log"
)

const (
	// resyncMin and resyncMax bound the time after which all is looked at without notice. It varies so that the shims of
	// a node do not wake up together.
	resyncMin = 1 * time.Second
	resyncMax = 3 * time.Second
	// gap is the least time between two looks. A burst of changes at a source makes one write of each gap, and a single
	// change waits for at most that long.
	gap = 5 * time.Millisecond
)

// loop is the goroutine of a Reconciler that looks again when the notifier says so.
type loop struct {
	notifier Notifier
	cancel   context.CancelFunc
	ended    chan struct{} // closed when the goroutine has ended
}

// end ends the goroutine and waits for it. The caller must not have the turn.
func (l *loop) end() {
	l.cancel()
	if err := l.notifier.Close(); err != nil {
		log.L.WithError(err).Warn("cpuset: close the notifier")
	}
	<-l.ended
}

// watch watches what the containers that follow depend on, and starts the goroutine if there is none. Called with the turn.
func (r *Reconciler) watch() {
	if r.loop == nil {
		notifier, err := r.open()
		if err != nil {
			log.L.WithError(err).Warnf("cpuset: changes of sources are seen after up to %v (is fs.inotify.max_user_instances used up?)", resyncMax)
			notifier = clock{make(chan struct{})}
		}
		ctx, cancel := context.WithCancel(context.Background())
		r.loop = &loop{notifier, cancel, make(chan struct{})}
		go r.run(ctx, r.loop) // ends with the last container that follows, or by Stop; change joins it
	}
	var files, dirs []string
	for _, f := range r.following() {
		files = append(files, f.files(r.root)...)
		dirs = append(dirs, f.home(r.root))
	}
	unwatched := ""
	if err := r.loop.notifier.Watch(unique(files), unique(dirs)); err != nil {
		unwatched = err.Error()
	}
	if unwatched != "" && unwatched != r.unwatched {
		log.L.Warnf("cpuset: changes are seen after up to %v: %s", resyncMax, unwatched)
	}
	r.unwatched = unwatched
}

func unique(paths []string) []string {
	slices.Sort(paths)
	return slices.Compact(paths)
}

func (r *Reconciler) run(ctx context.Context, l *loop) {
	defer close(l.ended)
	for l.notifier.Wait(resyncMin + rand.N(resyncMax-resyncMin)) { //nolint:gosec // nobody gains by a guess of it
		r.look(ctx, l)
		select {
		case <-ctx.Done():
			return
		case <-time.After(gap):
		}
	}
}

// look reconciles all containers that follow, unless the loop was ended while it waited for the turn.
func (r *Reconciler) look(ctx context.Context, l *loop) {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	if r.loop == l {
		r.watch()
		r.reconcile(ctx, r.following()...)
	}
}

// reconcile reconciles containers and keeps how it went. No cgroup waits for the Apply of another. Called with the turn.
func (r *Reconciler) reconcile(ctx context.Context, fs ...*follower) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	errs := make([]error, len(fs))
	for i, f := range fs {
		errs[i] = f.reconcile()
	}
	for i, f := range fs {
		if errs[i] == nil {
			errs[i] = f.tell(ctx)
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return // the goroutine is to end
		}
		f.conclude(errs[i])
		r.show(f)
	}
}
