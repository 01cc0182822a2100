// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"time"

	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/reaper"
)

// State is a pod in the state for a successor.
type State struct {
	ID         string
	Bundle     string
	Config     Config
	MaxShmSize int64
	Shared     bool `json:",omitempty"`
	CgroupPath string
	MountLabel string
	Network    handover.FD   `json:",omitempty"`
	Namespaces []handover.FD `json:",omitempty"` // of the main thread
	Holder     *HolderState  `json:",omitempty"`
}

// HolderState is the process that holds the namespaces of a pod.
type HolderState struct {
	Pid    int
	Exited bool      `json:",omitempty"` // with Status
	Status int       `json:",omitempty"`
	At     time.Time `json:",omitzero"`
}

// Save returns the state of a pod whose Start is not under way, while the reaper is frozen.
func (p *Pod) Save(h *handover.Saver) (*State, error) {
	s := &State{
		ID: p.ID, Bundle: p.Bundle, Config: p.Config, MaxShmSize: p.MaxShmSize, Shared: p.Shared,
		CgroupPath: p.cgroupPath, MountLabel: p.mountLabel, Network: h.Keep(p.network),
	}
	if p.holder != nil {
		s.Holder = p.holder.save()
	}
	if !p.onMainThread {
		return s, nil
	}
	for _, name := range heldNamespaces {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", os.Getpid(), name))
		if err != nil {
			return nil, err
		}
		p.saved = append(p.saved, file)
		s.Namespaces = append(s.Namespaces, h.Keep(file))
	}
	return s, nil
}

// Saved closes what Save opened.
func (p *Pod) Saved() {
	for _, f := range p.saved {
		_ = f.Close() // opened for its name only
	}
	p.saved = nil
}

// Leave moves the main thread to the namespaces of the host, so that a program that it executes begins there. Stay
// undoes that.
func (p *Pod) Leave() error {
	if !p.onMainThread {
		return nil
	}
	return enterHostNamespaces(p.thread)
}

// Stay has the main thread hold the namespaces of Save again.
func (p *Pod) Stay() error { return enterAll(p.thread, p.saved) }

func enterAll(thread *osthread.Thread, namespaces []*os.File) error {
	var errs []error
	for _, file := range namespaces {
		errs = append(errs, thread.Do(func() error { return setns(file, 0) }))
	}
	return errors.Join(errs...)
}

// Restored is the pod of a state.
type Restored struct {
	*Pod
	namespaces []*os.File
}

// OnMainThread reports whether Enter has something to do.
func (p *Restored) OnMainThread() bool { return p.onMainThread }

// Enter has the main thread hold the namespaces of the pod, or if it fails, none of them. Nothing that can fail follows
// it: a return to the former program would begin there.
func (p *Restored) Enter() error {
	err := enterAll(p.thread, p.namespaces)
	if err != nil {
		err = errors.Join(err, enterHostNamespaces(p.thread))
	}
	return err
}

// Begin watches the process that holds the namespaces, if there is one.
func (p *Restored) Begin() {
	if p.holder != nil {
		p.holder.watch(p.Reaper, nil)
	}
}

// Restore returns the pod of a state. Enter and Begin are to be called.
func Restore(l *handover.Loader, s *State, t *osthread.Thread, r *reaper.Reaper) (restored *Restored, err error) {
	p := &Pod{
		Request: Request{
			ID: s.ID, Bundle: s.Bundle, Config: s.Config, MaxShmSize: s.MaxShmSize, Reaper: r, Shared: s.Shared,
		},
		cgroupPath: s.CgroupPath, mountLabel: s.MountLabel, thread: t, onMainThread: len(s.Namespaces) > 0,
	}
	if p.network, err = l.File(s.Network, s.Config.NetNS); err != nil {
		return nil, err
	}
	restored = &Restored{Pod: p}
	for _, fd := range s.Namespaces {
		file, err := l.File(fd, "namespace")
		if err != nil {
			return nil, err
		}
		l.CloseLater(file)
		restored.namespaces = append(restored.namespaces, file)
	}
	if s.Holder != nil {
		p.holder, err = restoreHolder(s.Holder, r)
	}
	return restored, err
}

func (h *holder) save() *HolderState {
	s := &HolderState{Pid: h.Pid()}
	if h.reaped {
		s.Exited, s.Status, s.At = true, h.status, h.at
	}
	return s
}

func restoreHolder(s *HolderState, r *reaper.Reaper) (h *holder, err error) {
	h = &holder{pid: s.Pid, exited: make(chan struct{}), reaped: s.Exited, status: s.Status, at: s.At}
	if !s.Exited {
		r.Register(s.Pid)
		h.process, err = os.FindProcess(s.Pid)
	}
	return h, err
}

// heldNamespaces are those that the main thread may hold for a pod, by their names in /proc.
var heldNamespaces = []string{"net", "ipc", "uts"}
