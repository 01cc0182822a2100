// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// stateFile lies in the bundle, which containerd removes after the container.
const stateFile = "shim.json"

// State is what the delete command has to know about a container whose shim is dead, and cannot find in the bundle
// otherwise: containerd gives it no options.
type State struct {
	Root          string        // directory of state directories, with the namespace
	SystemdCgroup bool          `json:",omitempty"`
	Pid           int           `json:",omitempty"` // of init; 0 while it is being created
	Exit          *process.Exit `json:",omitempty"` // of init; nil before it
	Stop          process.Stop  `json:",omitzero"`  // how a running container is stopped; zero: killed
	// Extensions are the records of extensions, by their names.
	Extensions map[string]json.RawMessage `json:",omitempty"`
}

// Write replaces the state in bundle.
func (s State) Write(bundle string) error {
	return unixfile.WriteJSON(filepath.Join(bundle, stateFile), s)
}

// RemoveState removes the state from bundle, if it is there.
func RemoveState(bundle string) error { return unixfile.Remove(filepath.Join(bundle, stateFile)) }

// ReadState reads the state in bundle.
func ReadState(bundle string) (State, error) {
	var read struct {
		State
		PidFile, Sockets json.RawMessage // where releases before pkg/extension have the records
	}
	err := unixfile.ReadJSON(filepath.Join(bundle, stateFile), &read)
	if read.Extensions == nil && (read.PidFile != nil || read.Sockets != nil) {
		read.Extensions = map[string]json.RawMessage{"pid-file": read.PidFile, "listen": read.Sockets}
	}
	return read.State, err
}

// DefaultRoot returns the directory of the state directories of a namespace, if no option moves it.
func DefaultRoot(namespace string) string { return filepath.Join(options.DefaultRoot, namespace) }

// deletedFile lies in the bundle of a container or pod that its shim removed: the path of the socket of a shim that has
// nothing else, or "", a zero byte, and what the delete command answers. pkg/bootstrap/delete.c reads it.
const deletedFile = "shim.deleted"

// RemoveAnswer removes the answer from bundle, if there is one.
func RemoveAnswer(bundle string) error { return unixfile.Remove(filepath.Join(bundle, deletedFile)) }

const (
	// indexFile lies in the index bundle: the one for which the shim was started, which is the pod's.
	indexFile = "shim.pod.json"
	// indexLink lies in each other bundle and is a link to the index bundle.
	indexLink = "shim.home"
)

// podIndex lists what one shim has. An entry is written before the container is made. Without the file the shim has
// only the container of the index bundle.
type podIndex struct {
	ID      string // of the index bundle's sandbox or container
	Pod     bool   `json:",omitempty"` // the index bundle is that of a sandbox, which is no container
	Socket  string // of the shim; nobody listens there when it is dead
	Members map[string]podEntry
}

// podEntry is a container whose bundle is not the index bundle.
type podEntry struct {
	Bundle string
	Root   string // of its state directory, should the bundle be gone
}

func (x podIndex) write(bundle string) error {
	return unixfile.WriteJSON(filepath.Join(bundle, indexFile), x)
}

func readIndex(bundle string) (x podIndex, err error) {
	return x, unixfile.ReadJSON(filepath.Join(bundle, indexFile), &x)
}

// Index is the shim's side of the pod index. The zero Index keeps it in the bundle of the first container.
type Index struct {
	mu     sync.Mutex // held while small files are written
	bundle string     // the index bundle; "" when the next container's bundle becomes it
	index  podIndex
	answer Answer
}

// Answer encodes what the delete command prints: the pid and exit of a container's init.
type Answer func(pid int, exit process.Exit) ([]byte, error)

// SetShim sets in which bundle the shim was started, where it listens, and how the delete command answers. It is called
// before anything else.
func (x *Index) SetShim(bundle, socket string, answer Answer) {
	x.bundle, x.index.Socket, x.answer = resolveBundle(bundle), socket, answer
}

// Add lists a container for the delete command. root is the directory of its state directory.
func (x *Index) Add(containerID, bundle, root string) error {
	bundle = resolveBundle(bundle)
	x.mu.Lock()
	defer x.mu.Unlock()
	// The index bundle is gone when containerd gave up on what the shim was started for.
	if _, err := os.Stat(x.bundle); x.bundle == "" || errors.Is(err, os.ErrNotExist) {
		return x.moveLocked(containerID, bundle)
	}
	if bundle == x.bundle {
		x.index.ID = containerID
		if len(x.index.Members) == 0 {
			return nil // the bundle itself says so
		}
		return x.saveLocked()
	}
	if x.index.Members == nil {
		x.index.Members = map[string]podEntry{}
	}
	x.index.Members[containerID] = podEntry{Bundle: bundle, Root: root}
	if err := x.index.write(x.bundle); err != nil {
		delete(x.index.Members, containerID)
		return err
	}
	return unixfile.Symlink(x.bundle, filepath.Join(bundle, indexLink))
}

// Remove undoes Add, and may be called without it. When the index bundle itself is removed, another one takes its
// place.
func (x *Index) Remove(containerID, bundle string) error {
	bundle = resolveBundle(bundle)
	x.mu.Lock()
	defer x.mu.Unlock()
	if bundle == x.bundle && !x.index.Pod {
		if len(x.index.Members) == 0 {
			x.bundle = ""
			return nil
		}
		ids := slices.Sorted(maps.Keys(x.index.Members))
		i := slices.IndexFunc(ids, func(id string) bool { // the bundle of one whose creation failed is gone
			_, err := os.Stat(x.index.Members[id].Bundle)
			return err == nil
		})
		if i < 0 {
			return nil // the next Add moves it
		}
		next := ids[i]
		if err := x.moveLocked(next, x.index.Members[next].Bundle); err != nil {
			return err
		}
		return unixfile.Remove(filepath.Join(bundle, indexFile))
	}
	member, ok := x.index.Members[containerID]
	if !ok {
		return nil
	}
	delete(x.index.Members, containerID)
	err := errors.Join(unixfile.Remove(filepath.Join(bundle, indexLink)), x.saveLocked())
	if err != nil {
		x.index.Members[containerID] = member // for the next try
	}
	return err
}

// LeaveAnswer leaves the answer for the delete command in the bundle of a container or pod of which nothing is left.
// Without it that command looks for what may be left, as it does after a shim that died.
func (x *Index) LeaveAnswer(bundle string, s State) {
	if err := x.leaveAnswer(bundle, s); err != nil && !errors.Is(err, os.ErrNotExist) {
		log.L.WithError(err).WithField("bundle", bundle).Info("leave the answer for the delete command")
	}
}

func (x *Index) leaveAnswer(bundle string, s State) error {
	if x.answer == nil || s.Exit == nil {
		return nil
	}
	answer, err := x.answer(s.Pid, *s.Exit)
	if err != nil {
		return err
	}
	x.mu.Lock()
	var text []byte
	if !x.index.Pod && len(x.index.Members) == 0 && (x.bundle == "" || x.bundle == resolveBundle(bundle)) {
		text = []byte(x.index.Socket) // which the shim keeps while it has other containers, or a pod
	}
	x.mu.Unlock()
	answer = append(append(text, 0), answer...)
	return unixfile.Write(filepath.Join(bundle, deletedFile), answer)
}

// SetPod makes bundle, which is that of a sandbox, the index bundle. With pod false the sandbox is gone.
func (x *Index) SetPod(sandboxID, bundle string, pod bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.bundle, x.index.ID, x.index.Pod = resolveBundle(bundle), sandboxID, pod
	return x.saveLocked()
}

// moveLocked makes the bundle of a container the index bundle. A sandbox that had it is gone, or its bundle is. If that
// fails, the former one still is, and it can be tried again.
func (x *Index) moveLocked(containerID, bundle string) (err error) {
	formerBundle, former := x.bundle, x.index
	former.Members = maps.Clone(x.index.Members)
	defer func() {
		if err != nil {
			x.bundle, x.index = formerBundle, former
		}
	}()
	delete(x.index.Members, containerID)
	x.bundle, x.index.ID, x.index.Pod = bundle, containerID, false
	if err := x.saveLocked(); err != nil {
		return err
	}
	for id, other := range x.index.Members {
		link := filepath.Join(other.Bundle, indexLink)
		if err := unixfile.Symlink(bundle, link); err != nil {
			log.L.WithError(err).WithField("container", id).Warn("link to the list of the pod's containers")
		}
	}
	return unixfile.Remove(filepath.Join(bundle, indexLink))
}

// saveLocked writes the index, or removes it if it would say nothing. An index bundle that is gone needs none: the
// delete command would not find it.
func (x *Index) saveLocked() error {
	if len(x.index.Members) == 0 && !x.index.Pod {
		return unixfile.Remove(filepath.Join(x.bundle, indexFile))
	}
	if err := x.index.write(x.bundle); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// indexBundle returns the bundle that has the index of the pod to which bundle belongs, if there is one. A link that
// leads nowhere leads to a bundle that is gone.
func indexBundle(bundle string) (string, error) {
	target, err := os.Readlink(filepath.Join(bundle, indexLink))
	switch {
	case err == nil && filepath.IsAbs(target):
		return target, nil
	case err == nil, errors.Is(err, os.ErrNotExist), errors.Is(err, unix.EINVAL): // EINVAL: not a link
		return bundle, nil
	}
	return "", fmt.Errorf("find the bundle with the list of the pod's containers: %w", err)
}

// resolveBundle returns the path of a bundle, which may be gone, without links: bundles are identified by their paths.
// containerd names them by its configuration, such as /var/run; the kernel gives another name to the shim that is
// started in one.
func resolveBundle(bundle string) string {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(bundle)); err == nil {
		return filepath.Join(dir, filepath.Base(bundle))
	}
	return bundle
}
