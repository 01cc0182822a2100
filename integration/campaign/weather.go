// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// mountRun gives the worker's containerd a file system of its own for bundles. What else lies in /run has one already,
// by cri.Isolation. containerd's database of mounts stays elsewhere: its failures are not the shim's.
func (e *Env) mountRun() error {
	bundles := e.runs()[0]
	if err := os.MkdirAll(bundles, 0o711); err != nil {
		return err
	}
	return errors.Join(harness.Mount("tmpfs", bundles, "tmpfs", 0), os.Chmod(bundles, 0o711))
}

// runs are the file systems that are /run to the worker's shims: bundles, and the states of containers.
func (e *Env) runs() []string {
	return []string{filepath.Join(e.daemon.State, "io.containerd.runtime.v2.task"), "/run/containerd"}
}

// spoil makes the weather bad.
func (e *Env) spoil(f Fault) (err error) {
	for _, dir := range e.runs() {
		err = errors.Join(err, harness.PollFor(time.Second, func() error {
			if f.Kind == ReadOnlyRun { // a file that is just being written delays it
				return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
			}
			var s unix.Statfs_t
			if err := unix.Statfs(dir, &s); err != nil {
				return err
			}
			// It may grow meanwhile.
			size := (s.Blocks - s.Bfree + uint64(f.Pages)) * uint64(s.Bsize)
			return unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size))
		}))
	}
	return err
}

// clearUp makes the weather fair.
func (e *Env) clearUp() (err error) {
	for _, dir := range e.runs() {
		err = errors.Join(err, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=1g"))
	}
	return err
}

// doInWeather does a step in bad weather, which ends with it at the latest.
func (e *Env) doInWeather(ctx context.Context, s Step) string {
	fair := time.After(s.Fault.For)
	if err := e.spoil(*s.Fault); err != nil { // somebody writes to it all the time
		fair = time.After(0)
	} else {
		e.count("bad weather")
	}
	done := make(chan string, 1)
	go func() { done <- e.operate(ctx, s) }() // joined below
	var answer string
	select {
	case answer = <-done:
		fair = nil
	case <-fair:
	}
	err := e.clearUp()
	if fair != nil {
		answer = <-done
	}
	if err != nil {
		return "weather: " + err.Error()
	}
	return answer
}
