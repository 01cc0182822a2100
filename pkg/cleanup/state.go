// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sandbox.internal/shim/pkg/listen"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// stateFile lies in the bundle, which containerd removes after the container.
const stateFile = "shim.json"

// State is what the delete command has to know of a container whose shim is dead, and cannot find in the bundle
// otherwise: containerd gives it no options.
type State struct {
	Root          string        // directory of state directories, with the namespace
	SystemdCgroup bool          `json:",omitempty"`
	Pid           int           `json:",omitempty"` // of init; 0 while it is being created
	Exit          *process.Exit `json:",omitempty"` // of init; nil before it
	PidFile       string        `json:",omitempty"`
	Stop          process.Stop  `json:",omitzero"`  // how a container that lives is ended; zero: killed
	Sockets       []listen.File `json:",omitempty"` // those of `listen` that lie on volumes or in the rootfs
}

// Write replaces the state in bundle.
func (s State) Write(bundle string) error { return writeJSON(filepath.Join(bundle, stateFile), s) }

// RemoveState removes the state from bundle, if it is there.
func RemoveState(bundle string) error { return unixfile.Remove(filepath.Join(bundle, stateFile)) }

// ReadState reads the state in bundle.
func ReadState(bundle string) (s State, err error) {
	return s, readJSON(filepath.Join(bundle, stateFile), &s)
}

// DefaultRoot is the directory of the state directories of a namespace, if no option moves it.
func DefaultRoot(namespace string) string { return filepath.Join(options.DefaultRoot, namespace) }

func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return unixfile.Write(path, data)
}

func readJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
