// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/containerd/v2/pkg/sys"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// initDaemon gives this process what the daemon has of its own. It joins the existing cgroup of that name, if it is not
// empty.
func initDaemon(d Daemon, cgroup string) error {
	// A group of its own keeps a terminal's signals and kills of containerd's group away. Not a session of its own: the
	// leader of a session takes the first terminal it opens as its controlling one, and shims open terminals.
	if err := unix.Setpgid(0, 0); err != nil {
		return fmt.Errorf("start daemon: make process group: %w", err)
	}
	if cgroup != "" {
		if err := joinCgroup(cgroup); err != nil {
			return fmt.Errorf("join shim cgroup %q: %w", cgroup, err)
		}
	}
	if err := raiseOOMScore(caller()); err != nil {
		log.L.WithError(err).Warn("the shim keeps the OOM score of its parent")
	}
	if os.Getenv("SCHED_CORE") != "" {
		// Asked for to keep workloads off each other's cores, so refusing is right where the kernel cannot.
		if err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, pidTypePgid, 0); err != nil {
			return fmt.Errorf("SCHED_CORE: make core scheduling domain: %w", err)
		}
	}
	// What it executes, loggers say, finds these where containerd's own shims have them (pkg/shim/util.go).
	for name, value := range map[string]string{
		"TTRPC_ADDRESS": d.TTRPCAddress, "GRPC_ADDRESS": d.Address, "NAMESPACE": d.Namespace,
		"OTEL_SERVICE_NAME": "containerd-shim-" + d.ID,
	} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("start daemon: set %s: %w", name, err)
		}
	}
	args := []string{Program, "-namespace", d.Namespace, "-id", d.ID, "-address", d.Address}
	if d.Debug {
		args = append(args, "-debug")
	}
	showArgs(args)
	return nil
}

// pidTypePgid is PIDTYPE_PGID of include/linux/pid.h: the domain is for the whole process group, each thread included.
const pidTypePgid = 2

// joinCgroup moves this process into the cgroup group: on v1 in each hierarchy that has it. start calls it before it
// answers, so that containerd hears of a failure.
func joinCgroup(group string) (err error) {
	group = path.Clean("/" + group) // no ".." leads out of the hierarchy
	pid := uint64(os.Getpid())
	if cgroups.Mode() == cgroups.Unified {
		var m *cgroup2.Manager
		if m, err = cgroup2.Load(group); err == nil {
			err = m.AddProc(pid)
		}
	} else {
		var c cgroup1.Cgroup
		if c, err = cgroup1.Load(cgroup1.StaticPath(group)); err == nil {
			err = c.AddProc(pid)
		}
	}
	switch {
	case errors.Is(err, cgroup1.ErrCgroupDeleted), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("it does not exist: %w", errdefs.ErrNotFound)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w (cpuset.cpus or cpuset.mems is empty)", err)
	}
	return err
}

// raiseOOMScore makes this process one point likelier to be killed for memory than parent: losing containerd would cost
// every container, losing a shim one pod. Where the parent's score is below ours, that needs CAP_SYS_RESOURCE
// (proc_pid_oom_score_adj(5)).
func raiseOOMScore(parent int) error {
	score, err := sys.GetOOMScoreAdj(parent)
	if err != nil {
		return err
	}
	return sys.AdjustOOMScore(os.Getpid(), score+1)
}
