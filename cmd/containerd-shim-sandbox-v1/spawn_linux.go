// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// launch says how the daemon is started.
type launch struct {
	bundle      string // its working folder
	args        []string
	env         []string
	cgroup      string // existing cgroup to run it in; "" for the caller's
	coreSched   bool   // give it a core scheduling domain of its own
	oomScoreAdj bool   // make it likelier to be killed than the caller
}

// daemonArgs are the daemon's flags: those of start without an action. They show in ps.
func daemonArgs(f flags, r request) []string {
	args := []string{"-namespace", f.namespace, "-id", f.id, "-address", r.grpcAddress}
	if r.debug {
		args = append(args, "-debug")
	}
	return args
}

// noHugePages keeps the Go heap off transparent huge pages, which would round a small heap up to 2 MiB pieces.
// PR_SET_THP_DISABLE would do the same, but fork and exec hand it on: every container would lose its huge pages.
const noHugePages = "disablethp=1"

// containerdProcs is the GOMAXPROCS that containerd gives to every shim. One is enough for what is mostly system calls,
// which do not count, and takes less memory and CPU time (docs/decisions/0006).
const containerdProcs, ownProcs = "2", "1"

// daemonEnv is the caller's environment with what the daemon needs; of two settings of a name the last one counts.
func daemonEnv(environ []string, f flags, r request) []string {
	env := slices.Clone(environ)
	godebug, procs := noHugePages, containerdProcs
	for _, s := range env {
		if v, ok := strings.CutPrefix(s, "GODEBUG="); ok && v != "" {
			godebug = v + "," + noHugePages
		}
		if v, ok := strings.CutPrefix(s, "GOMAXPROCS="); ok {
			procs = v
		}
	}
	if procs == containerdProcs {
		procs = ownProcs // anything else is an operator's wish
	}
	return append(env,
		"GOMAXPROCS="+procs,
		"GODEBUG="+godebug,
		"TTRPC_ADDRESS="+r.ttrpcAddress,
		"GRPC_ADDRESS="+r.grpcAddress,
		"NAMESPACE="+f.namespace,
		"OTEL_SERVICE_NAME=containerd-shim-"+f.id,
	)
}

// The daemon's inherited descriptors.
const (
	listenFD   = 3 // fixed by the shim protocol
	answeredFD = 4 // named in answeredEnv, since containerd may one day pass a 4 of its own
)

// spawn forks the daemon that serves l, and does not wait until it does: whoever connects is heard as soon as it runs
// (docs/decisions/0007). After an error there is neither daemon nor socket. It closes l's descriptor in any case. The
// caller writes a byte to answered once containerd has the address; when this process ends without that, the daemon ends
// too.
//
// What the daemon must inherit (cgroup, OOM score, core scheduling) is set on this process before the fork: the
// daemon is right from its first instruction, and nothing is left to fail once it runs.
func spawn(ctx context.Context, l *listener, to launch) (answered *os.File, err error) {
	defer func() {
		if err != nil {
			// Another context: this must also happen when ctx is what ended.
			err = errors.Join(err, removeSocket(context.WithoutCancel(ctx), l.path, l.id))
		}
	}()
	answerable, answered, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start daemon: %w", err), l.file.Close())
	}
	cmd, err := daemonCommand(to, l.file, answerable)
	if err == nil {
		err = forkDaemon(cmd, to)
	}
	// Closed at once: the daemon must hold the only copies, so that its death resets whoever connects.
	if err := errors.Join(err, answerable.Close(), l.file.Close()); err != nil {
		if cmd != nil && cmd.Process != nil {
			err = errors.Join(err, end(cmd))
		}
		return nil, errors.Join(err, answered.Close())
	}
	return answered, cmd.Process.Release()
}

// daemonCommand prepares our own binary as the daemon.
func daemonCommand(to launch, listen, answered *os.File) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	if _, err := os.Stat(self); err != nil {
		self = "/proc/self/exe" // replaced while we run; only the name in ps suffers
	}
	cmd := exec.Command(self, to.args...)
	cmd.Args[0] = binaryName
	cmd.Dir = to.bundle
	cmd.Env = append(to.env, answeredEnv+"="+strconv.Itoa(answeredFD))
	cmd.ExtraFiles = []*os.File{listen, answered}
	// Stdin, Stdout and Stderr stay nil, which is /dev/null: containerd waits until nobody holds our stdout.
	//
	// A group of its own keeps a terminal's signals and kills of containerd's group away. Not a session of its own: the
	// leader of a session takes the first terminal it opens as its controlling one, and shims open terminals.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, nil
}

// forkDaemon sets what cmd inherits and starts it.
func forkDaemon(cmd *exec.Cmd, to launch) error {
	if to.cgroup != "" {
		if err := joinCgroup(to.cgroup); err != nil {
			return err
		}
	}
	if to.oomScoreAdj {
		if err := raiseOOMScore("/proc", os.Getppid()); err != nil {
			log.L.WithError(err).Warn("the shim keeps the OOM score of its parent")
		}
	}
	if err := keepDescriptors(); err != nil {
		return err
	}
	// A core scheduling cookie belongs to a thread; the fork must come from one that has it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if to.coreSched {
		// Asked for to keep workloads off each other's cores, so refusing is right where the kernel cannot.
		if err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, pidTypePgid, 0); err != nil {
			return fmt.Errorf("SCHED_CORE: make core scheduling domain: %w", err)
		}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	return nil
}

// keepDescriptors marks everything above stdio close-on-exec: what we inherited from containerd without it is not the
// daemon's. Kernels before 5.11 do not know the flag, and are walked through.
func keepDescriptors() error {
	if unix.CloseRange(firstFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("mark descriptors close-on-exec: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= firstFD {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// firstFD is the first descriptor after stdio.
const firstFD = 3

// pidTypePgid is PIDTYPE_PGID of include/linux/pid.h: the domain is for the whole process group.
const pidTypePgid = 2

// end kills the daemon and collects it, so that nothing of it runs when start reports the failure.
func end(cmd *exec.Cmd) error {
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill daemon %d: %w", cmd.Process.Pid, err)
	}
	err := cmd.Wait()
	if _, bad := errors.AsType[*exec.ExitError](err); bad {
		return nil // that it ended badly is why we are here
	}
	return err
}
