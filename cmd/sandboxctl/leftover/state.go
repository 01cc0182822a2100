// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	json "github.com/go-json-experiment/json/v1" // whose errors unixfile returns
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/unixfile"
)

// state is a state directory of libcontainer's.
type state struct {
	Name
	dir     string
	bundle  string                // of the container, as its label has it
	started uint64                // of its first process
	groups  []string              // its cgroups, one for each hierarchy
	pids    func() ([]int, error) // in them and below, listed once
	doubt   string                // why libcontainer, and with it the delete command, may see something else in it
}

// readState reads a state directory.
func (s *Scan) readState(n Name, dir string) (state, error) {
	var file struct { // all of libcontainer's fields except for the rest of config
		ID          string            `json:"id"`
		Pid         int               `json:"init_process_pid"`
		Started     uint64            `json:"init_process_start"`
		Created     time.Time         `json:"created"`
		Rootless    bool              `json:"rootless"`
		Groups      map[string]string `json:"cgroup_paths"`
		Namespaces  map[string]string `json:"namespace_paths"`
		Descriptors []string          `json:"external_descriptors"`
		RDT         string            `json:"intel_rdt_path"`
		Config      struct {
			Labels []string `json:"labels"`
		} `json:"config"`
	}
	st := state{Name: n, dir: dir}
	err := unixfile.ReadJSON(filepath.Join(dir, "state.json"), &file)
	if _, other := errors.AsType[*json.UnmarshalTypeError](err); other { // the other fields are read
		st.doubt = fmt.Sprintf("its state cannot be read: %v", err)
	} else if err != nil {
		return state{}, err
	}
	st.started = file.Started
	for _, label := range file.Config.Labels {
		if bundle, found := strings.CutPrefix(label, "bundle="); found {
			st.bundle = bundle
		}
	}
	for _, group := range file.Groups {
		if group != "" && !slices.Contains(st.groups, group) { // empty: the hierarchy is absent
			st.groups = append(st.groups, group)
		}
	}
	if st.doubt == "" && len(st.groups) == 0 {
		st.doubt = "its state names no cgroup"
	}
	slices.Sort(st.groups)
	st.pids = sync.OnceValues(func() ([]int, error) { return s.processes(st.groups) })
	return st, nil
}

// scanStates lists those of all containers whose state directories are in the default place, or where a bundle says.
func (s *Scan) scanStates() (list []state) {
	seen := map[string]bool{}
	add := func(n Name, dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		if st, err := s.readState(n, dir); err == nil { // else it is just being made, or removed
			list = append(list, st)
		}
	}
	below(s.Root.Path(options.DefaultRoot), add)
	for _, b := range s.bundles {
		for _, p := range b.parts {
			add(p.Name, p.state)
		}
	}
	return list
}

// here reports whether the bundle of a container was below this containerd's state directory.
func (s *Scan) here(st state) bool {
	return st.bundle != "" && (machine.Within(s.State, st.bundle) || machine.Within(s.configured, st.bundle))
}

// bundlePath returns where a containerd has the bundle of a container.
func bundlePath(state string, n Name) string {
	return filepath.Join(state, bundleDirs[0], n.Namespace, n.ID)
}

// processes lists those in cgroups and below, each once. A container can nest cgroups deeper than a path can name.
func (s *Scan) processes(groups []string) (pids []int, err error) {
	for _, group := range groups {
		if !machine.Within(machine.CgroupRoot, group) {
			continue
		}
		top := s.Root.Path(group)
		text, err := os.ReadFile(filepath.Join(top, procsFile)) // of a threaded cgroup it fails: processes are further up
		if err == nil {
			pids, err = appendPids(pids, text)
		}
		if err == nil {
			err = cgroup.WalkNested(top, func(n cgroup.Nested) (err error) {
				text, err := n.Read(procsFile)
				if err == nil {
					pids, err = appendPids(pids, text)
				}
				if errors.Is(err, unix.EOPNOTSUPP) {
					return nil // threaded: one above it, and not above top, lists them (cgroup-v2.rst, "Threads")
				}
				return err
			}, nil)
		}
		if err != nil && !cgroup.IsGone(err) {
			return nil, fmt.Errorf("list processes of %s: %w", group, err)
		}
	}
	slices.Sort(pids) // on v1 each hierarchy has them
	return slices.Compact(pids), nil
}

const procsFile = "cgroup.procs"

// appendPids adds what cgroup.procs lists.
func appendPids(pids []int, text []byte) ([]int, error) {
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", procsFile, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// foreign returns why it is not certain that all in the cgroups of a container is its own. Removing the container kills
// what is there.
func (s *Scan) foreign(st state) hold {
	if st.doubt != "" {
		return hold{st.doubt, removeState(st.dir)}
	}
	for _, group := range st.groups {
		if filepath.Clean(group) != group || !machine.Within(machine.CgroupRoot, group) || s.isHierarchy(group) {
			return holdf(removeState(st.dir),
				"its state names %s, which is no cgroup of one container", group)
		}
		within := func(other string) bool { return machine.Within(group, other) }
		for _, other := range s.states {
			if other.dir != st.dir && slices.ContainsFunc(other.groups, within) {
				return holdf(fmt.Sprintf("when container %s in namespace %s has ended, run this again", other.ID, other.Namespace),
					"container %s in namespace %s has its cgroup %s, or one in it", other.ID, other.Namespace, group)
			}
		}
	}
	pids, err := st.pids()
	if err != nil {
		return holdf(removeState(st.dir), "which processes its cgroups have cannot be seen: %v", err)
	}
	seen := map[int]bool{}
	for _, pid := range pids {
		if h := s.stranger(st, pid, seen); h != (hold{}) {
			return h
		}
	}
	return hold{}
}

// isHierarchy reports whether a cgroup is the first of a hierarchy.
func (s *Scan) isHierarchy(group string) bool {
	return slices.ContainsFunc(s.hierarchies, func(h machine.Hierarchy) bool { return h.Dir == group })
}

// stranger returns why a process in the cgroup of a dead container may not belong to it. seen are those that have no
// shim above them: its own, and those that it has looked at.
func (s *Scan) stranger(st state, pid int, seen map[int]bool) hold {
	move := fmt.Sprintf("move process %d out of the cgroup first, %s", pid, again)
	end := fmt.Sprintf("move process %d out of the cgroup or end it first, %s", pid, again)
	if pid == os.Getpid() || pid == s.Daemon || pid == 0 { // 0: one that has no pid here
		return holdf(move, "its cgroup has process %d, which is not the container's", pid)
	}
	stat, err := s.Root.Stat(pid)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && stat.Dead:
		return hold{} // it has ended meanwhile
	case err != nil:
		return holdf(end, "its cgroup has process %d, which cannot be seen: %v", pid, err)
	case stat.Started < st.started:
		return holdf(end, "its cgroup has process %d, which is older than the container", pid)
	}
	if mounts := s.mountNamespace(machine.PidText(pid)); mounts == "" || mounts == s.namespace {
		return holdf(end, "its cgroup has process %d, which is not in a mount namespace of a container", pid)
	}
	for at := pid; at > 1 && !seen[at]; { // there is a loop if pids are used again
		seen[at] = true
		if i := slices.IndexFunc(s.shims, func(sh shim) bool { return sh.pid == at }); i >= 0 {
			return holdf(s.shims[i].wait(), "%s, lives and has its process %d", s.shims[i], pid)
		}
		stat, err := s.Root.Stat(at)
		if err != nil {
			break
		}
		at = stat.Parent
	}
	return hold{}
}
