// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sandbox.internal/shim/pkg/process"
)

// recordFile lies in the bundle, which containerd removes after the container.
const recordFile = "shim.json"

// record is what the delete command needs of a container whose shim is dead,
// and cannot find in the bundle otherwise: it is given no options.
type record struct {
	Root          string        // of the state directories, the namespace included
	SystemdCgroup bool          `json:",omitempty"`
	Pid           int           `json:",omitempty"` // of init; 0 while it is being created
	Exit          *process.Exit `json:",omitempty"` // of init; nil before it
	PidFile       string        `json:",omitempty"`
	Stop          process.Stop  `json:",omitzero"` // how it is ended while it lives; zero: killed
}

func readRecord(bundle string) (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(bundle, recordFile))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", recordFile, err)
	}
	return r, nil
}

// write replaces the record at once, so that a reader never sees half of one.
func (r record) write(bundle string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replace(filepath.Join(bundle, recordFile), func(path string) error { return os.WriteFile(path, data, 0o600) })
}

// replace lets create make a file, which takes the place of path at once.
func replace(path string, create func(path string) error) error {
	next := path + ".new"
	_ = os.Remove(next) // left by a shim that was killed here, else it is not there
	err := create(next)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next) // it may not be there
	}
	return err
}

func removeRecord(bundle string) error { return remove(filepath.Join(bundle, recordFile)) }

// remove removes path, which may be gone.
func remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
