// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	json "github.com/go-json-experiment/json/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/stdio"
)

// Runtime is an OCI runtime.
type Runtime interface {
	// Create creates a container whose init waits for Start to run its program, or, with c.Checkpoint, one whose init can
	// be restored: then there is no process yet, and s is nil. If it fails, or ctx ends first, nothing is left.
	Create(ctx context.Context, c Config, s *stdio.Streams) (RuntimeContainer, error)
	// Restore returns a container that a former program of this process has saved. Nothing may happen to its processes
	// before all is restored.
	Restore(l *handover.Loader, c Config, state json.RawMessage) (RuntimeContainer, error)
}

// RuntimeContainer is one container of a Runtime. Restore, Start, Pause, Resume, Update, Checkpoint and Destroy are
// called one at a time, with opLock of init held. The others are called at any time.
type RuntimeContainer interface {
	// Init returns the container's first process, as Create started it.
	Init() Handle
	// Restore restores init and all other processes of the checkpoint, and replaces Start. If it fails, or ctx ends first,
	// none of them is running.
	Restore(ctx context.Context, s *stdio.Streams) (Handle, error)
	// Start lets init run its program. It returns when the program has begun, or with an error if init has exited.
	Start() error
	// Exec runs another process and returns when its program has begun. If l is not nil, the process has a cgroup of its
	// own, and the kernel enforces the limits on memory and processes: SIGKILL kills all processes there, and Wait kills
	// those that the first one leaves behind and returns when all have exited. Otherwise the cgroup is nil.
	Exec(ctx context.Context, p *specs.Process, l *limit.Limits, s *stdio.Streams) (Handle, ExecCgroup, error)
	Pause() error  // freezes every process of the container
	Resume() error // thaws them; does not wait for an Exec in flight
	// Update changes the resources that r names. If it fails, it restores the former values as far as the kernel allows.
	Update(r *specs.LinuxResources) error
	// KeepCPUSet informs others that write the container's cgroup, as systemd does when it is reloaded, which CPUs and
	// memory nodes were written there. An empty list is left out.
	KeepCPUSet(ctx context.Context, cpus, mems string) error
	// Checkpoint writes the state of all processes to disk. With r.Exit they have exited afterwards; otherwise, and if it
	// fails, they continue. It is not interrupted: processes that CRIU inspects from inside might not survive that.
	Checkpoint(r CheckpointRequest) error
	Cgroup() *cgroup.Cgroup // of the container's processes
	Launch() inspect.Launch // how processes were started
	// KillRemaining kills, once init has exited, the processes that the kernel did not kill with it: it kills those in a
	// PID namespace of the container's own.
	KillRemaining(ctx context.Context) error
	// Destroy removes what Create made. Init must have exited. It can be called again.
	Destroy() error
	// Save returns what Restore is to have. init is nil before a restore from a checkpoint; started says that it runs its
	// program. No process is reaped meanwhile, and no other method called.
	Save(h *handover.Saver, init Handle, started bool) (any, error)
	// RestoreExec returns an exec that Handle.Save has saved.
	RestoreExec(state json.RawMessage, l *limit.Limits) (Handle, ExecCgroup, error)
	// Discard is Destroy for a container whose creation failed, and which nobody will destroy again. Nothing is left on
	// disk even if it fails, since another program such as systemd does not answer.
	Discard() error
}

// Handle is one live process. It remains valid when the kernel reuses the pid.
type Handle interface {
	Pid() int
	// OnEnd calls f, the waiter, on a goroutine of its own when the process has exited, or earlier. It is called once.
	OnEnd(f func())
	// Wait blocks until the process has exited and reaps it. Only the waiter calls it.
	Wait() Exit
	// Signal returns errdefs.ErrNotFound for a process that has exited. Right after Start a signal other than SIGKILL
	// waits briefly for the program, which the kernel loads after Start has returned.
	Signal(sig syscall.Signal) error
	// Save returns what RestoreExec is to have; see there.
	Save() any
}

// ExecCgroup is the cgroup of an exec with limits.
type ExecCgroup interface {
	Cgroup() *cgroup.Cgroup  // exists until Release
	Account() cgroup.Account // usage of the exec and all processes that it started, after Wait
	Release()                // removes the cgroup as soon as it is empty, after the exit is published
}

// Exit is how a process ended.
type Exit struct {
	Status int            // exit code, or 128 + number of the signal that killed it
	At     time.Time      // when the kernel reported it
	Signal syscall.Signal `json:",omitempty"` // that killed it; 0 if it exited
	Used   cgroup.Account `json:"-"`          // CPU time of it and of all that it waited for; memory of the largest
}

// Config is what a container is created with. The caller has checked it.
type Config struct {
	ID         string
	Bundle     string      // absolute path of the OCI bundle
	Rootfs     string      // absolute path of the root file system; mounted once Prepare of all hooks has returned
	Spec       *specs.Spec // nil once there is an init
	IO         stdio.Config
	Mounts     []event.Mount // of the root file system, as the event reports them
	Checkpoint string        // directory of the image that Start restores init from; empty for a fresh container
	MayRestore func() error  `json:"-"` // refuses a restore that is about to begin; nil without Checkpoint
	Stop       Stop          // of a running container that is removed from disk; the zero value kills it
	Files      []*os.File    // init's, from descriptor 3 on
	Hooks      []Hook
	Record     Record  `json:"-"`
	CPUSet     CPUSet  `json:"-"` // nil for a container that follows no other cgroup
	Sleeper    Sleeper `json:"-"` // nil for a container that never sleeps
	Options
}

// Record keeps what the delete command has to know. Its methods are called one at a time, and must not block for long.
type Record interface {
	Begin() error    // before anything is made
	Created(pid int) // of init, when all hooks are done
	Exited(Exit)     // of init, before its exit is published
	Remove() error   // when nothing else is left; can be called again after a failure
	Deleted()        // after the Remove of a Delete, before the deletion is published
}

// CPUSet keeps the CPUs of a container those of another cgroup (pkg/cpuset).
type CPUSet interface {
	BeforeUpdate(r *specs.LinuxResources) // before the runtime writes r to the cgroup
	AfterUpdate(err error)                // with the runtime's result
	BeforeDestroy()                       // before the runtime removes the cgroup
}

// Stop is how a container is stopped: init gets Signal, and what still runs after Grace is killed.
type Stop struct {
	Signal syscall.Signal
	Grace  time.Duration
}

// Options are the settings of a container that this package and the runtime need.
type Options struct {
	Root          string        // directory of all containers' state directories
	SystemdCgroup bool          // cgroupsPath must be slice:prefix:name
	NoPivotRoot   bool          // MS_MOVE instead of pivot_root, for a rootfs on a ramdisk
	NoNewKeyring  bool          // keep the session keyring of the shim
	IOOwner       idmap.Owner   // owner of the pipes given to processes
	CriuPath      string        // the criu program that is wanted; empty for the one in PATH
	CriuWorkPath  string        // for logs of a restore; empty for a directory in the bundle
	Init          bool          // a small init starts the program, reaps, and forwards signals
	ExecLimits    *limit.Limits // of each exec that asks for no tighter ones; nil for none, and no verdict
	VerdictFile   string        // path of files with verdicts, in which {exec} stands for the exec; "" for none
}

// SetEnv sets an environment variable of init, overriding the configuration.
func (c *Config) SetEnv(name, value string) {
	p := c.Spec.Process
	env := slices.DeleteFunc(slices.Clone(p.Env), func(e string) bool { return strings.HasPrefix(e, name+"=") })
	p.Env = append(env, name+"="+value)
}

// Hook makes something that a container has in addition to what the runtime makes, such as a pid file. Its methods are
// called in the order of [Config.Hooks], Removed in the reverse order.
type Hook interface {
	// Prepare is called before the runtime creates the container. It may change c.Spec, c.Rootfs, c.Files and c.Init.
	Prepare(ctx context.Context, c *Config) error
	// Created is called when init exists, before it is announced. Init does not run its program yet, except in a container
	// restored from a checkpoint, where Start calls Created.
	Created(ctx context.Context, c RuntimeContainer, init Handle) error
	// Removed undoes Prepare and Created. It is called after the container is destroyed, and if its creation failed, even
	// if Prepare or Created failed or were not called. It is called again after a failure.
	Removed() error
}

// Resumer is a [Hook] that does something while the container exists. Resumed takes the place of Prepare and Created
// when the container is that of a former program, and all of it is restored.
type Resumer interface{ Resumed(c RuntimeContainer) }

// NoHook is a [Hook] that does nothing, to be embedded in one that does not need all methods.
type NoHook struct{}

// Prepare implements [Hook].
func (NoHook) Prepare(context.Context, *Config) error { return nil }

// Created implements [Hook].
func (NoHook) Created(context.Context, RuntimeContainer, Handle) error { return nil }

// Removed implements [Hook].
func (NoHook) Removed() error { return nil }
