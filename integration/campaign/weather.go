// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// runSize is how large the file systems of a worker's /run are in fair weather.
const runSize = 1 << 30

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

// spoilLimit is how long spoil tries.
const spoilLimit = time.Second

// spoil makes the weather bad, and returns what makes it fair again.
func (e *Env) spoil(f Fault) (fix func() error, err error) {
	for _, dir := range e.runs() {
		err = errors.Join(err, harness.PollFor(spoilLimit, func() error {
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
	return func() error {
		var err error
		for _, dir := range e.runs() {
			err = errors.Join(err, unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", runSize)))
		}
		return err
	}, err
}

// doInWeather does a step in bad weather, which ends with it at the latest.
func (e *Env) doInWeather(ctx context.Context, s Step) string {
	fix, err := e.spoil(*s.Fault)
	if err != nil { // somebody writes to it all the time
		if err := fix(); err != nil {
			return "weather: " + err.Error()
		}
		return e.operate(ctx, s)
	}
	e.count(func(t *Totals) { t.Weather++ })
	done := make(chan string, 1)
	go func() { done <- e.operate(ctx, s) }() // joined below
	var answer string
	select {
	case answer = <-done:
		err = fix()
	case <-time.After(s.Fault.For):
		err = fix()
		answer = <-done
	}
	if err != nil {
		return "weather: " + err.Error()
	}
	return answer
}

// cage is the path of the cgroup of the shims of a place.
func (e *Env) cage(p *place) string {
	return fmt.Sprintf("/%s/shims/%d", e.name, min(p.number, firstGrouped))
}

// makeCages makes them, and the cgroups above.
func (e *Env) makeCages() error {
	if err := e.delegate("/"); err != nil {
		return err
	}
	for _, path := range []string{"/" + e.name, "/" + e.name + "/shims"} {
		if err := errors.Join(cri.MakeCgroup(path), e.delegate(path)); err != nil {
			return err
		}
	}
	for i := range firstGrouped + 1 {
		if err := cri.MakeCgroup(e.cage(&place{number: i})); err != nil {
			return err
		}
	}
	return nil
}

// delegate lets the cgroups below path have limits, where that has to be said.
func (e *Env) delegate(path string) error {
	file := filepath.Join("/sys/fs/cgroup", path, "cgroup.subtree_control")
	if harness.CgroupMode() != "v2" || e.noLimits != "" {
		return nil
	}
	return os.WriteFile(file, []byte("+memory +pids"), 0)
}

// runtimeOptions is the runtime of the container that a step creates.
func (e *Env) runtimeOptions(p *place, s Step) client.NewContainerOpts {
	follows := e.follows(s) != ""
	switch {
	case !s.Caged && !follows:
		return e.plainRuntime()
	case !follows: // any shim knows that one
		return client.WithRuntime(e.daemon.Env.Runtime, &runcoptions.Options{ShimCgroup: e.cage(p), SystemdCgroup: e.systemd})
	}
	text := fmt.Sprintf("AllowUnsafeAnnotations = ['cpuset.source']\nSystemdCgroup = %t\n", e.systemd)
	if s.Caged {
		text += fmt.Sprintf("ShimCgroup = %q\n", e.cage(p))
	}
	return client.WithRuntime(e.daemon.Env.Runtime,
		&runtimeoptions.Options{TypeUrl: "sandbox", ConfigBody: []byte(text)})
}

// confine takes the memory or the processes from the shim of a place for a while. The step may choose an id meanwhile.
func (e *Env) confine(ctx context.Context, s Step, p *place, ended <-chan struct{}) error {
	v1, v2, unit := "memory.limit_in_bytes", "memory.max", os.Getpagesize()
	v1used, v2used := "memory.usage_in_bytes", "memory.current"
	if s.Fault.Kind == CrowdShim {
		v1, v2, unit = "pids.max", "pids.max", 1
		v1used, v2used = "pids.current", "pids.current"
	}
	text, err := harness.CgroupFile(e.cage(p), v1used, v2used)
	if err != nil {
		return err
	}
	used, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	file, err := harness.CgroupFilePath(e.cage(p), v1, v2)
	if err != nil {
		return err
	}
	e.count(func(t *Totals) { t.Weather++ })
	e.excuse(s)
	err = os.WriteFile(file, []byte(strconv.Itoa(used+s.Fault.Pages*unit)), 0)
	if errors.Is(err, unix.EBUSY) { // of v1, if more is used by now than can be given back
		err = nil
	}
	over, tick := time.After(s.Fault.For), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-tick.C:
			e.excuse(s)
		case <-ended:
			e.excuse(s)
			ended = nil // the limit stays: the shim may do something by itself
		case <-over:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	free := "max"
	if strings.HasSuffix(file, v1) && v1 != v2 {
		free = "-1"
	}
	return errors.Join(err, os.WriteFile(file, []byte(free), 0))
}

// ownShim copies the shim's program to where the worker can replace it.
func (e *Env) ownShim(programs harness.Env) (harness.Env, error) {
	var err error
	if e.programs, err = os.MkdirTemp("", harness.NamespacePrefix); err != nil {
		return programs, err
	}
	e.original = programs.Shim
	programs.Shim = filepath.Join(e.programs, filepath.Base(programs.Shim))
	return programs, copyProgram(e.original, programs.Shim, "")
}

// replaceShim puts another file in the place of the shim's program, as an upgrade does. Shims that run have the former.
func (e *Env) replaceShim(Step) string {
	name := e.daemon.Env.Shim
	e.replaced++
	if err := copyProgram(e.original, name+".new", fmt.Sprintf("build %d", e.replaced)); err != nil {
		return "error: " + err.Error()
	}
	if err := os.Rename(name+".new", name); err != nil {
		return "error: " + err.Error()
	}
	return ok
}

// copyProgram copies a program, and appends what makes it another file and changes nothing.
func copyProgram(from, to, mark string) error {
	program, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, append(program, mark...), 0o755)
}
