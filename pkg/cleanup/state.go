// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// stateFile is in the bundle of each container and pod. It has the [State], and after the removal
// [Index.LeaveAnswer]'s text.
const stateFile = "shim.json"

// State of a container or a pod, for the delete command.
type State struct {
	Root          string                     // directory of state directories, with the namespace
	SystemdCgroup bool                       `json:",omitempty"`
	Pid           int                        `json:",omitempty"` // of init; 0 while it is being created
	Exit          *process.Exit              `json:",omitempty"` // of init; nil before it
	Stop          process.Stop               `json:",omitzero"`  // how a running container is stopped; zero: killed
	Extensions    map[string]json.RawMessage `json:",omitempty"` // their records, by name

	Pod     bool              `json:",omitempty"` // it is a pod of the Sandbox API, and no container
	Socket  string            `json:",omitempty"` // of the shim
	Members map[string]Member `json:",omitempty"` // what else the shim has, by id, if it was started for this one
}

// Member is a container of a shim that was started for another container or a pod.
type Member struct {
	Bundle string
	Root   string // State.Root, should the bundle be gone
}

// Write replaces the state in bundle.
func (s State) Write(bundle string) error {
	return unixfile.WriteJSON(filepath.Join(bundle, stateFile), s)
}

// ReadState reads the state in bundle. Without a file, and with an answer in the file, the state is zero.
func ReadState(bundle string) (State, error) {
	var read struct {
		State
		PidFile, Sockets json.RawMessage // where releases before pkg/extension have the records
	}
	data, err := os.ReadFile(filepath.Join(bundle, stateFile))
	if err == nil && !bytes.Contains(data, []byte{0}) {
		err = json.Unmarshal(data, &read)
	}
	if err == nil || errors.Is(err, os.ErrNotExist) {
		// Former releases have Pod, Socket and Members in a file of their own.
		err = unixfile.ReadJSON(filepath.Join(bundle, "shim.pod.json"), &read.State)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return read.State, fmt.Errorf("read %s: %w", stateFile, err)
	}
	if read.Extensions == nil && (read.PidFile != nil || read.Sockets != nil) {
		read.Extensions = map[string]json.RawMessage{"pid-file": read.PidFile, "listen": read.Sockets}
	}
	return read.State, nil
}

// DefaultRoot returns the directory of a namespace's state directories, if no option moves it.
func DefaultRoot(namespace string) string { return filepath.Join(options.DefaultRoot, namespace) }

// Index writes the states of one pod, or of a container outside of pods. The state of the container or pod for which
// start was called first lists all others, for containerd calls the delete command for that one alone when the shim
// dies (containerd#10727).
type Index struct {
	mu     sync.Mutex // held while small files are written
	id     string     // of the one for which the shim was started
	bundle string     // of that one; "" once it is removed
	state  State      // in that bundle; without Root if only Members is known
	socket string
	answer Answer

	Others func() bool // whether the shim has something that another Index writes; nil: it has not
}

// Answer encodes the output of the delete command: the pid and exit of a container's init.
type Answer func(pid int, exit process.Exit) ([]byte, error)

// SetShim is called before anything else.
func (x *Index) SetShim(id, bundle, socket string, answer Answer) {
	x.id, x.bundle, x.socket, x.answer = id, bundle, socket, answer
}

// Write writes the state of a container or pod, and lists it before. Only the one of SetShim can be a pod.
func (x *Index) Write(id, bundle string, s State) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	s.Socket = x.socket
	if id == x.id || s.Pod {
		s.Members = x.state.Members
		x.id, x.bundle, x.state = id, bundle, s
		return s.Write(bundle)
	}
	if _, listed := x.state.Members[id]; !listed {
		if x.state.Members == nil {
			x.state.Members = map[string]Member{}
		}
		x.state.Members[id] = Member{Bundle: bundle, Root: s.Root}
		if err := x.saveLocked(); err != nil {
			delete(x.state.Members, id)
			return fmt.Errorf("list it for the delete command: %w", err)
		}
	}
	return s.Write(bundle)
}

// Remove removes a state, even without Write. After an error it can be tried again.
func (x *Index) Remove(id, bundle string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := unixfile.Remove(filepath.Join(bundle, stateFile)); err != nil {
		return err
	}
	if id == x.id {
		x.bundle, x.state = "", State{Members: x.state.Members}
		return nil
	}
	member, listed := x.state.Members[id]
	if !listed {
		return nil
	}
	delete(x.state.Members, id)
	err := x.saveLocked()
	if err != nil {
		x.state.Members[id] = member
	}
	return err
}

// saveLocked writes the list, unless the bundle is gone.
func (x *Index) saveLocked() error {
	if x.bundle == "" {
		return nil
	}
	x.state.Socket = x.socket
	if err := x.state.Write(x.bundle); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// SavedIndex is an Index in the state for a successor.
type SavedIndex struct {
	ID     string
	Bundle string
	State  State
}

// Save returns the Index for a successor. Nothing is written meanwhile.
func (x *Index) Save() SavedIndex {
	x.mu.Lock()
	defer x.mu.Unlock()
	return SavedIndex{x.id, x.bundle, x.state}
}

// Restore comes after SetShim.
func (x *Index) Restore(s SavedIndex) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.id, x.bundle, x.state = s.ID, s.Bundle, s.State
}

// LeaveAnswer leaves the answer for the delete command (pkg/bootstrap/delete.c) in the bundle of a removed container
// or pod: the socket's path if the shim has nothing else, or "", a zero byte, and the output.
func (x *Index) LeaveAnswer(bundle string, s State) {
	if x.answer == nil || s.Exit == nil {
		return
	}
	answer, err := x.answer(s.Pid, *s.Exit)
	others := x.Others != nil && x.Others()
	if err == nil {
		x.mu.Lock()
		var text []byte
		if x.state.Root == "" && len(x.state.Members) == 0 && !others {
			text = []byte(x.socket)
		}
		x.mu.Unlock()
		err = unixfile.Write(filepath.Join(bundle, stateFile), append(append(text, 0), answer...))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.L.WithError(err).WithField("bundle", bundle).Info("leave the answer for the delete command")
	}
}
