// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// freezeTimeout bounds the wait for a cgroup to freeze. Freezing only helps against processes that fork while they are
	// killed, and a process that sleeps in the kernel may keep it from completing.
	freezeTimeout = 100 * time.Millisecond

	// firstPoll and lastPoll bound the wait between two polls of a state that the kernel does not announce.
	firstPoll = time.Millisecond
	lastPoll  = 50 * time.Millisecond
)

// freezer is the files that stop and continue all processes of a cgroup: freezer.state on v1
// (cgroup-v1/freezer-subsystem.rst), cgroup.freeze and cgroup.events on v2 (cgroup-v2.rst, "Core Interface Files").
type freezer struct {
	dir            string
	file           string
	frozen, thawed string // what is written to file
	stateFile      string
	done           string // what stateFile contains once every process is stopped
}

// freezer returns the cgroup's freezer, whose dir is "" on a machine without one.
func (c *Cgroup) freezer() freezer {
	if c.unified {
		return freezer{c.Path(""), "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"}
	}
	return freezer{c.Path("freezer"), "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"}
}

// requested reports whether somebody asked for a freeze and nobody has thawed since. The cgroup may not be frozen yet.
func (f freezer) requested() bool {
	if f.dir == "" {
		return false
	}
	b, err := os.ReadFile(filepath.Join(f.dir, f.file))
	return err == nil && !strings.HasPrefix(string(b), f.thawed)
}

// freeze stops all processes and waits for that, at most for freezeTimeout. It returns no error after the timeout:
// those that are stopped by then stay stopped. thaw continues them, also after an error. It opens nothing, since no
// descriptor may be left by then, and succeeds for a cgroup that is gone.
func (f freezer) freeze(ctx context.Context) (thaw func() error, err error) {
	nothing := func() error { return nil }
	if f.dir == "" {
		return nothing, errors.New("no freezer controller")
	}
	file, err := os.OpenFile(filepath.Join(f.dir, f.file), os.O_WRONLY, 0)
	if err != nil {
		return nothing, err
	}
	thaw = func() error {
		if _, err := file.WriteAt([]byte(f.thawed), 0); err != nil && !IsGone(err) {
			return errors.Join(err, file.Close())
		}
		return file.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		// v1 stays at FREEZING when processes appeared meanwhile, until the file is written again.
		if _, err := file.WriteAt([]byte(f.frozen), 0); err != nil {
			return thaw, err
		}
		b, err := os.ReadFile(filepath.Join(f.dir, f.stateFile))
		if err != nil || strings.Contains(string(b), f.done) || !sleep(ctx, wait) {
			return thaw, err
		}
	}
}

// Thaw continues all processes, also those in nested cgroups, whoever froze them.
func (c *Cgroup) Thaw() error { return c.freezer().thawTree() }

// thawTree thaws the cgroup and the cgroups nested in it, which may have been frozen on their own.
func (f freezer) thawTree() error {
	if f.dir == "" {
		return nil
	}
	err := walk(f.dir, func(n node) error {
		file, err := n.open(f.file, unix.O_WRONLY)
		if err != nil {
			return err
		}
		return writeAndClose(file, f.thawed)
	}, nil)
	if err != nil && !IsGone(err) {
		return fmt.Errorf("thaw cgroup %s: %w", f.dir, err)
	}
	return nil
}

// sleep waits for d and reports whether ctx lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
