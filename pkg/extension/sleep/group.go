// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/poll"
	"sandbox.internal/shim/pkg/process"
)

const (
	// briefly is after how long a container that was woken for execs alone sleeps again: a probe is no use of it.
	briefly = 500 * time.Millisecond
	// ending is how long a container is awake at least after a signal, which may ask it to end: it may have to wait for
	// others for that, with a grace period that nobody tells the shim.
	ending = 10 * time.Minute
	// retry is the time from a freeze that failed to the next try.
	retry = time.Minute
	// A container that has fallen asleep so often within a minute is awake for the whole time after each use.
	flaps      = 20
	flapWindow = time.Minute
)

// group is containers that sleep and wake together: one, or those of a pod. Its timer runs while nobody uses them.
type group struct {
	config config // +checklocksignore: never changes

	mu sync.Mutex // held while they are frozen and thawed, so a use waits for that
	// +checklocks:mu
	members map[*hook]struct{}
	// +checklocks:mu
	uses int
	// +checklocks:mu
	timer *time.Timer // nil before the first use has ended
	// +checklocks:mu
	due time.Time // of the timer, which a use may find fired
	// +checklocks:mu
	since time.Time // the end of the last use, or the last look at the CPU time; while asleep, the beginning of that
	// +checklocks:mu
	cpu time.Duration // used by then
	// +checklocks:mu
	brief bool // woken for execs alone since it slept
	// +checklocks:mu
	asleep bool
	// +checklocks:mu
	held int // times that the state is being saved: nothing changes meanwhile
	// +checklocks:mu
	stopReclaim context.CancelFunc // not nil once it has slept
	// +checklocks:mu
	told told
	// +checklocks:mu
	changed chan struct{} // closed by the next change of that, or of the members; nil: nobody waits
	// +checklocks:mu
	slept []time.Time // of late
	// +checklocks:mu
	flapping bool // was said
}

func newGroup(c config) *group {
	return &group{config: c, members: map[*hook]struct{}{}, told: told{Woken: map[string]uint64{}}}
}

// use wakes the containers, and keeps them awake until done. reason is one of process.Use….
func (g *group) use(h *hook, reason string) (done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if reason != process.UseExec {
		g.brief = false
	}
	if reason == process.UseSignal {
		h.signalled = time.Now()
	}
	g.wakeLocked(reason)
	if _, ok := g.members[h]; !ok { // it is not created yet, or removed
		return func() {}
	}
	g.uses++
	h.uses++
	if g.timer != nil {
		g.timer.Stop()
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, ok := g.members[h]; !ok {
			return // its uses have gone with it
		}
		h.uses--
		// Input comes in many small pieces. What the CPU did shortly before one counts with what it does after.
		g.endUsesLocked(1, reason == process.UseInput && time.Since(g.since) < g.config.after/10)
	}
}

// endUsesLocked ends n uses. recent says that the last look at the CPU time will do.
//
// +checklocks:g.mu
func (g *group) endUsesLocked(n int, recent bool) {
	if g.uses -= n; g.uses > 0 || len(g.members) == 0 {
		return
	}
	if !recent {
		g.since, g.cpu = time.Now(), g.usedLocked()
	}
	wait := g.config.after
	if g.brief && !g.flapping {
		wait = min(wait, briefly)
	}
	for h := range g.members {
		if !h.signalled.IsZero() {
			wait = max(wait, ending-time.Since(h.signalled))
		}
	}
	g.armLocked(wait)
}

// +checklocks:g.mu
func (g *group) armLocked(wait time.Duration) {
	g.due = time.Now().Add(wait)
	if g.timer == nil {
		g.timer = time.AfterFunc(wait, g.look)
		return
	}
	g.timer.Reset(wait)
}

// usedLocked is the CPU time of all. That of a container that is gone, and has no use for any, is left out.
//
// +checklocks:g.mu
func (g *group) usedLocked() (sum time.Duration) {
	for h := range g.members {
		if u, err := h.runtime.Cgroup().Usage(); err == nil {
			sum += u.CPU
		}
	}
	return sum
}

// look puts them to sleep if they have been idle since the last one.
func (g *group) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.uses > 0 || g.asleep || len(g.members) == 0 || time.Now().Before(g.due) {
		return
	}
	now, cpu := time.Now(), g.usedLocked()
	idle := float64(cpu-g.cpu) <= g.config.cpu*float64(now.Sub(g.since))
	g.since, g.cpu = now, cpu
	if g.held > 0 || !idle {
		g.brief = false
		g.armLocked(g.config.after)
		return
	}
	if err := g.sleepLocked(); err != nil {
		log.L.WithError(err).Warn("an idle container stays awake")
		g.armLocked(max(retry, g.config.after))
	}
}

// sleepLocked freezes all, or none, and then gives their memory back.
//
// +checklocks:g.mu
func (g *group) sleepLocked() error {
	for h := range g.members {
		if !h.runtime.Cgroup().Exists() { // it has exited, and systemd has removed its scope
			continue
		}
		if err := h.runtime.Pause(); err != nil {
			return errors.Join(fmt.Errorf("freeze container %q: %w", h.id, err), g.thawLocked())
		}
	}
	g.asleep, g.since, g.told.Asleep, g.told.Since = true, time.Now(), true, time.Now()
	g.told.Slept++
	g.changedLocked()
	g.boundLocked()
	ctx, cancel := context.WithCancel(context.Background())
	g.stopReclaim = cancel
	if g.config.reclaim {
		for h := range g.members {
			go g.reclaim(ctx, h) // ends by stopReclaim, or after reclaimTime; on v1 when the kernel has done with it
		}
	}
	g.watchLocked()
	return nil
}

// watchLocked wakes them by a connection to one of their sockets.
//
// +checklocks:g.mu
func (g *group) watchLocked() {
	for h := range g.members {
		g.unwatchLocked(h)
		for _, s := range h.sockets {
			stop, err := poll.Once(int(s.Fd()), func() { g.connected(h) })
			if err != nil {
				log.L.WithError(err).WithField("container", h.id).Error("no connection wakes the container")
				continue
			}
			h.unwatch = append(h.unwatch, stop)
		}
	}
}

// +checklocks:g.mu
func (g *group) unwatchLocked(h *hook) {
	for _, stop := range h.unwatch {
		stop()
	}
	h.unwatch = nil
}

// connected wakes them, unless their state is being saved: then a successor watches the sockets, or Save's thaw does.
func (g *group) connected(h *hook) {
	g.mu.Lock()
	held := g.held > 0
	g.mu.Unlock()
	if !held {
		g.use(h, process.UseConnection)()
	}
}

// boundLocked counts how often they have slept of late.
//
// +checklocks:g.mu
func (g *group) boundLocked() {
	now := time.Now()
	for len(g.slept) > 0 && now.Sub(g.slept[0]) > flapWindow {
		g.slept = g.slept[1:]
	}
	g.slept = append(g.slept, now)
	if was := g.flapping; len(g.slept) >= flaps && !was {
		g.flapping = true
		log.L.WithField("containers", len(g.members)).
			Warnf("slept %d times within %v: from now on only %v after each exec", flaps, flapWindow, g.config.after)
	}
}

// wakeLocked thaws all that sleep. If that fails, they are tried again by the next use.
//
// +checklocks:g.mu
func (g *group) wakeLocked(reason string) {
	if !g.asleep {
		return
	}
	g.stopReclaim()
	if err := g.thawLocked(); err != nil {
		log.L.WithError(err).Error("wake")
		return
	}
	for h := range g.members {
		g.unwatchLocked(h)
	}
	g.asleep, g.told.Asleep, g.told.Since = false, false, time.Now()
	g.brief = reason == process.UseExec
	g.told.Woken[reason]++
	g.told.Reason = reason
	g.changedLocked()
}

// +checklocks:g.mu
func (g *group) thawLocked() error {
	var errs []error
	for h := range g.members {
		if err := h.runtime.Resume(); err != nil && h.runtime.Cgroup().Exists() {
			errs = append(errs, fmt.Errorf("thaw container %q: %w", h.id, err))
		}
	}
	return errors.Join(errs...)
}

// sleep puts them to sleep at once.
func (g *group) sleep() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.asleep:
		return nil
	case g.uses > 0:
		return fmt.Errorf("sleep: an exec or a request is under way, or it is paused: %w", errdefs.ErrFailedPrecondition)
	case g.held > 0 || len(g.members) == 0 || g.timer == nil:
		return fmt.Errorf("sleep: it does not run: %w", errdefs.ErrFailedPrecondition)
	}
	g.timer.Stop()
	err := g.sleepLocked()
	if err != nil {
		g.armLocked(g.config.after)
	}
	return err
}

// add adds a container that exists.
func (g *group) add(h *hook) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wakeLocked(process.UseStart)
	g.members[h] = struct{}{}
}

// remove forgets a container that is gone.
func (g *group) remove(h *hook) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.members[h]; !ok {
		return
	}
	g.unwatchLocked(h)
	delete(g.members, h)
	g.changedLocked()
	g.endUsesLocked(h.uses, false)
	if len(g.members) == 0 {
		if g.timer != nil {
			g.timer.Stop()
		}
		if g.stopReclaim != nil {
			g.stopReclaim()
		}
	}
}

// closeAll closes the sockets of a container.
func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // only watched
	}
}
