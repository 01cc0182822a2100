// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/unixfile"
)

// lookTimeout is far more than it takes to list the processes of any container but a hostile one.
const lookTimeout = time.Second

// refuseOthers returns an error if the init of another container is in cg, the cgroup of the container with the state
// directory dir, or below it. What is left of a container is killed with its cgroup, and another one can be there:
// `docker run --cgroup-parent` puts it below a container, and one with the same cgroupsPath may begin after this one
// has ended. Containers are those that have a state directory beside this one, of whatever namespace of containerd.
//
// If the cgroup cannot be looked through within lookTimeout, there is no error: only a hostile container, which makes
// cgroups as fast as they are looked at, takes that long, and it must not live on.
func refuseOthers(dir string, cg *cgroup.Cgroup) error {
	var pids []int
	err := unixfile.Within(lookTimeout, func() (err error) { pids, err = cg.Procs(); return err })
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if len(pids) == 0 {
		return nil
	}
	root := filepath.Dir(filepath.Dir(dir)) // above the directories of the namespaces
	dirs, err := subdirectories(root)
	if err != nil {
		return err
	}
	for _, other := range dirs {
		if other == dir {
			continue
		}
		text, err := os.ReadFile(filepath.Join(other, "state.json"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return err
		}
		if !mayName(text, pids) {
			continue
		}
		var other struct { // of libcontainer.State
			ID    string `json:"id"`
			Pid   int    `json:"init_process_pid"`
			Start uint64 `json:"init_process_start"`
		}
		if json.Unmarshal(text, &other) != nil || !slices.Contains(pids, other.Pid) {
			continue // a file that cannot be decoded is no container's
		}
		fd, err := openInit(other.Pid, other.Start)
		if err != nil {
			return fmt.Errorf("container %q: find out whether it runs: %w", other.ID, err)
		}
		if fd >= 0 {
			_ = unix.Close(fd) // nothing was written
			return fmt.Errorf("cgroup %s: process %d there is the init of container %q: delete that container first: %w",
				cg, other.Pid, other.ID, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// subdirectories returns what lies in the directories below root. Unlike fs.Glob it returns the errors: a lack of
// descriptors does not mean that there are no other containers.
func subdirectories(root string) (paths []string, err error) {
	namespaces, err := os.ReadDir(root)
	for _, namespace := range namespaces {
		containers, err := os.ReadDir(filepath.Join(root, namespace.Name()))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return nil, err
		}
		for _, c := range containers {
			paths = append(paths, filepath.Join(root, namespace.Name(), c.Name()))
		}
	}
	return paths, err
}

// mayName reports whether one of pids can be the init of a state. A node has many states, and to decode one takes long.
func mayName(state []byte, pids []int) bool {
	for rest := state; ; {
		var found bool
		if _, rest, found = bytes.Cut(rest, []byte(`"init_process_pid":`)); !found {
			return false
		}
		digits := rest[:len(rest)-len(bytes.TrimLeft(rest, "0123456789"))]
		if pid, err := strconv.Atoi(string(digits)); err == nil && slices.Contains(pids, pid) {
			return true
		}
	}
}
