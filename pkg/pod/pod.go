// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package pod makes what the containers of a pod share: namespaces, the files of /etc that Kubernetes manages, and
// /dev/shm.
package pod

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/mainthread"
	"sandbox.internal/shim/pkg/orphan"
)

// Request asks for a pod.
type Request struct {
	ID            string
	Bundle        string // absolute; the pod's files are made there
	NetNS         string // path of the network namespace; "" for the host's, or for one of the pod's own
	Config        Config
	SystemdCgroup bool           // the cgroup driver is systemd's
	Reaper        *orphan.Reaper // told of the pod's child, so that it leaves it to the pod
}

// Pod is what the containers of a pod share.
type Pod struct {
	request Request
	thread  *mainthread.Thread
	exited  chan struct{}
}

// Create checks r and makes the pod's files. When it fails, nothing is left of it.
func Create(_ context.Context, r Request, t *mainthread.Thread) (*Pod, error) {
	return &Pod{request: r, thread: t, exited: make(chan struct{})}, nil
}

// Start makes the pod's namespaces. When it fails, nothing is left of them, and it can be tried again.
func (p *Pod) Start(context.Context) error {
	return fmt.Errorf("start pod: %w", errdefs.ErrNotImplemented)
}

// Pid is that of the process that holds the namespaces.
func (p *Pod) Pid() int { return os.Getpid() }

// Spec describes the started pod as an OCI configuration.
func (p *Pod) Spec() *specs.Spec { return &specs.Spec{} }

// Adapt adds to a container's configuration what the pod has for it.
func (p *Pod) Adapt(*specs.Spec) error { return nil }

// Exited is closed when the process that holds the namespaces has ended, which the shim itself never has.
func (p *Pod) Exited() <-chan struct{} { return p.exited }

// Exit is how that process ended: its exit code, or 128 and the signal. It can be called once Exited is closed.
func (p *Pod) Exit() (status int, at time.Time) { return 0, time.Time{} }

// CgroupPath is the cgroup of the pod, which its owner made: the path from the root of a hierarchy, or "".
func (p *Pod) CgroupPath() string { return "" }

// Close undoes Create and Start. It can be called again.
func (p *Pod) Close() error { return nil }

// Remove is Close for a pod whose shim is dead.
func Remove(bundle string) error { _ = bundle; return nil }
