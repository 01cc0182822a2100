// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// followed is the annotation by which a container has the CPUs of a cgroup.
const followed = "io.containerd.sandbox.v1/cpuset.source"

// WhyNoSources says why containers cannot follow the CPUs of a cgroup on this machine. It is empty if they can.
func WhyNoSources(programs harness.Env) string {
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	switch {
	case programs.Runtime != harness.Ours:
		return programs.Runtime + " does not know them"
	case err != nil:
		return "this machine has no cgroup v2 alone"
	case !slices.Contains(strings.Fields(string(controllers)), "cpuset"):
		return "its cgroup v2 has no cpuset controller"
	case runtime.NumCPU() < 2:
		return "it has one CPU"
	}
	return ""
}

// source is the path of the cgroup that containers follow.
func (e *Env) source() string { return "/" + e.name + "/source" }

// sourceDir is its directory.
func (e *Env) sourceDir() string { return filepath.Join("/sys/fs/cgroup", e.source()) }

// makeSource makes it, with all CPUs, where containers can follow it.
func (e *Env) makeSource() error {
	if e.noSources != "" {
		return nil
	}
	for _, dir := range []string{"/sys/fs/cgroup", filepath.Dir(e.sourceDir())} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpuset"), 0); err != nil {
			return fmt.Errorf("cpuset controller: %w", err)
		}
	}
	if err := os.Mkdir(e.sourceDir(), 0o755); err != nil {
		return err
	}
	return e.writeSource(^0)
}

// writeSource gives the source the CPUs of a mask, as far as there are such.
func (e *Env) writeSource(mask int) error {
	return os.WriteFile(filepath.Join(e.sourceDir(), "cpuset.cpus"), []byte(cpuList(mask, runtime.NumCPU())), 0)
}

// cpuList is a mask of CPUs as the kernel prints it, of a machine that has so many. Of no CPU it is the first.
func cpuList(mask, count int) string {
	var parts []string
	for i := 0; i < count; i++ {
		if mask&(1<<i) == 0 {
			continue
		}
		first := i
		for i+1 < count && mask&(1<<(i+1)) != 0 {
			i++
		}
		if part := strconv.Itoa(first); i > first {
			parts = append(parts, fmt.Sprintf("%s-%d", part, i))
		} else {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ",")
}

// follows is the source that the container of a step follows, or empty for none.
func (e *Env) follows(s Step) string {
	if !s.Follows || e.noSources != "" {
		return ""
	}
	return e.source()
}

// changeSource changes the CPUs of the source, and returns when all containers that follow it may run on these alone.
func (e *Env) changeSource(s Step) string {
	if e.noSources != "" {
		e.count(func(t *Totals) { t.LeftOut++ })
		return ok
	}
	e.count(func(t *Totals) { t.Sources++ })
	if err := e.writeSource(s.CPUs); err != nil {
		return "error: " + err.Error()
	}
	want := cpuList(s.CPUs, runtime.NumCPU())
	for _, p := range e.places {
		err := harness.PollFor(harness.Slow(10*time.Second), func() error { return e.runsOn(p, want) })
		if err != nil {
			return "error: " + err.Error()
		}
	}
	return ok
}

// runsOn returns an error if the container in a place follows the source, lives, and may run on other CPUs.
func (e *Env) runsOn(p *place, want string) error {
	pid := e.pidOf(p, noExec)
	fd := e.contained(pid)
	if !p.follows || fd < 0 {
		return nil
	}
	defer func() { _ = unix.Close(fd) }() // it was only to be sure of the process
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || !harness.Alive(pid) {
		return nil // it has ended meanwhile
	}
	if err != nil {
		return err
	}
	_, list, _ := strings.Cut(string(text), "\nCpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	if list = strings.TrimSpace(list); list != want {
		return fmt.Errorf("%s runs on the CPUs %s, and its source has %s", p.id, list, want)
	}
	return nil
}
