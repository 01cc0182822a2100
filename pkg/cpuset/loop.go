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
	// resyncMin and resyncMax bound the time after which everything is read without notice. It varies so that the shims of
	// a node do not wake up together.
	resyncMin = 1 * time.Second
	resyncMax = 3 * time.Second
	// gap is the least time between two reconciliations. A burst of changes makes one write in each gap, and a single
	// change waits at most that long.
	gap = 5 * time.Millisecond
)

// loop is the goroutine of a Reconciler, which reconciles when the notifier says so.
type loop struct {
	notifier Notifier
	cancel   context.CancelFunc
	ended    chan struct{} // closed when the goroutine has ended
}

// end ends the goroutine and waits for it. The caller must not hold cgroupLock.
func (l *loop) end() {
	l.cancel()
	if err := l.notifier.Close(); err != nil {
		log.L.WithError(err).Warn("cpuset: close the notifier")
	}
	<-l.ended
}

// updateWatches watches what the containers that follow depend on, and starts the goroutine if there is none. It is
// called with cgroupLock held.
func (r *Reconciler) updateWatches() {
	if r.loop == nil {
		notifier, err := r.open()
		if err != nil {
			log.L.WithError(err).Warnf("cpuset: changes of sources are seen after up to %v "+
				"(is fs.inotify.max_user_instances used up?)", resyncMax)
			notifier = clock{make(chan struct{})}
		}
		ctx, cancel := context.WithCancel(context.Background())
		r.loop = &loop{notifier, cancel, make(chan struct{})}
		go r.run(ctx, r.loop) // ends with the last container that follows, or by Stop; change joins it
	}
	var files, dirs []string
	for _, f := range r.following() {
		files = append(files, f.files(r.root)...)
		dirs = append(dirs, f.watchedDir(r.root))
	}
	problem := ""
	if err := r.loop.notifier.Watch(unique(files), unique(dirs)); err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != r.watchError {
		log.L.Warnf("cpuset: changes are seen after up to %v: %s", resyncMax, problem)
	}
	r.watchError = problem
}

func unique(paths []string) []string { return slices.Compact(slices.Sorted(slices.Values(paths))) }

func (r *Reconciler) run(ctx context.Context, l *loop) {
	defer close(l.ended)
	for l.notifier.Wait(resyncMin + rand.N(resyncMax-resyncMin)) { //nolint:gosec // nobody gains by a guess of it
		r.reconcileAll(ctx, l)
		select {
		case <-ctx.Done():
			return
		case <-time.After(gap):
		}
	}
}

// reconcileAll reconciles all containers that follow, unless l was ended while it waited for cgroupLock.
func (r *Reconciler) reconcileAll(ctx context.Context, l *loop) {
	r.cgroupLock <- struct{}{}
	defer func() { <-r.cgroupLock }()
	if r.loop == l {
		r.updateWatches()
		r.reconcile(ctx, r.following()...)
	}
}

// reconcile reconciles containers and records the results. No cgroup waits for the Apply of another. It is called with
// cgroupLock held.
func (r *Reconciler) reconcile(ctx context.Context, fs ...*follower) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	errs := make([]error, len(fs))
	for i, f := range fs {
		errs[i] = f.reconcile()
	}
	for i, f := range fs {
		if errs[i] == nil {
			errs[i] = f.notifyApplied(ctx)
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return // the goroutine is to end
		}
		f.recordResult(errs[i])
		r.publish(f)
	}
}
