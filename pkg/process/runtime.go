// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/stdio"
)

// Runtime is what this package asks of an OCI runtime.
type Runtime interface {
	// Create sets a container up to the point where init waits to be told to
	// run its program, or, with c.Checkpoint, where init can be restored: then
	// there is no process yet and s is nil. When it fails, or ctx ends first,
	// nothing is left of it.
	Create(ctx context.Context, c Config, s *stdio.Streams) (RuntimeContainer, error)
}

// RuntimeContainer is one container that a Runtime made. Restore, Start, Pause, Resume,
// Update, Checkpoint and Destroy are called one at a time, with the turn of init
// held, and nothing is called beside Destroy. The others are called at any time.
type RuntimeContainer interface {
	// Init is the container's first process, as Create started it.
	Init() Handle
	// Restore brings init and all other processes of the checkpoint back to
	// life, in place of Start. When it fails, or ctx ends first, none of them
	// lives.
	Restore(ctx context.Context, s *stdio.Streams) (Handle, error)
	// Start lets init run its program. It returns when that has begun, or with
	// an error when init is dead.
	Start(ctx context.Context) error
	// Exec runs a further process and returns when its program has begun.
	Exec(ctx context.Context, p *specs.Process, s *stdio.Streams) (Handle, error)
	// Pause freezes every process of the container.
	Pause() error
	// Resume thaws them. It does not wait for an Exec in flight.
	Resume() error
	// Update changes the resources that r names and leaves the others. When it
	// fails the former values are back, as far as the kernel allows.
	Update(r *specs.LinuxResources) error
	// KeepCPUSet tells who else writes the container's cgroup, as systemd does
	// when it is reloaded, which CPUs and memory nodes were written there. Of an
	// empty list nothing is told.
	KeepCPUSet(ctx context.Context, cpus, mems string) error
	// Checkpoint writes the state of all processes to disk. With r.Exit they
	// are dead afterwards, otherwise they go on as before, as they do when it
	// fails. It is not interrupted: processes that are looked at from inside
	// might not survive that.
	Checkpoint(r CheckpointRequest) error
	// Cgroup is where the container's processes live.
	Cgroup() *cgroup.Cgroup
	// OwnsPIDs tells whether the kernel ends all processes with init, which it
	// does in a PID namespace of the container's own.
	OwnsPIDs() bool
	// Destroy removes what Create made. Init must be dead. A container that is
	// gone already is no error, so that a failed Destroy can be tried again.
	Destroy() error
	// Discard is Destroy for a container that Create made in vain, which nobody
	// will destroy again: where only another program that has to know is silent,
	// as systemd may be, the error says so, and nothing is left on disk.
	Discard() error
}

// Handle is one live process. It stays right when the kernel reuses the pid.
type Handle interface {
	Pid() int
	// Wait blocks until the process is dead and reaps it. The waiter alone calls it.
	Wait() Exit
	// Signal returns errdefs.ErrNotFound for a process that is dead. Right after Start a signal other than SIGKILL, and 0
	// too, waits a little for the program that it is for.
	Signal(sig syscall.Signal) error
}

// Grouped is a Handle of an exec in a cgroup of its own. SIGKILL ends all that
// is in there, and Wait then returns when it is dead. What an exec that ends by
// itself leaves behind lives on.
type Grouped interface {
	Handle
	// Usage is that of now, or of the end.
	Usage() Usage
	// Release removes the cgroup as soon as it is empty. The waiter calls it,
	// after the exit was told.
	Release()
}

// Usage is what an exec used, with all that it started.
type Usage struct {
	CPU time.Duration
	// Memory is the most at a time, in bytes: of all its processes together, or
	// if it is not CgroupTotal, of the largest of them that has ended.
	Memory      uint64
	CgroupTotal bool
}

// Exit is how a process ended.
type Exit struct {
	Status int       // exit code, or 128 + number of the signal that killed it
	At     time.Time // when the kernel reported it
}

// Config is all that is asked for at Create. The sandbox has checked it.
type Config struct {
	ID     string
	Bundle string // absolute path of the OCI bundle
	Rootfs string // absolute path of the root file system, mounted already
	Spec   *specs.Spec
	IO     stdio.Config
	// Checkpoint is the directory of the image that init is restored from at
	// Start; empty for a fresh container.
	Checkpoint string
	// Stop is how a container that lives is ended before it is removed from
	// disk; the zero value kills it.
	Stop  Stop
	Files []*os.File // init's, from descriptor 3 on
	Hooks []CreateHook
	Options
}

// Stop is how a container is ended: Signal asks init to, and what lives when
// Grace is over is killed.
type Stop struct {
	Signal syscall.Signal
	Grace  time.Duration
}

// Options are the runtime options of a container that reach the engine.
type Options struct {
	Root          string        // directory of all containers' state directories
	SystemdCgroup bool          // cgroupsPath must be slice:prefix:name
	NoPivotRoot   bool          // MS_MOVE instead of pivot_root, for a rootfs on a ramdisk
	NoNewKeyring  bool          // keep the session keyring of the shim
	IOOwner       stdio.Owner   // owner of the pipes given to processes
	CriuPath      string        // the criu program that is wanted; empty for the one in PATH
	CriuWorkPath  string        // for logs of a restore; empty for a directory in the bundle
	ExecCgroup    bool          // each exec gets a cgroup of its own: handles are Grouped
	ExecTimeout   time.Duration // after which an exec is killed; 0 for never
}
