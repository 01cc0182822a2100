// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

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
)

const (
	// rosterFile lies in one bundle, home: that for which the shim was started,
	// which is the pod's.
	rosterFile = "shim.pod.json"
	// homeLink lies in every other bundle, and leads to home.
	homeLink = "shim.home"
)

// roster is what the delete command needs to know of all that a dead shim had.
// It is written before any of it is made. Without the file there is nothing but
// the container of the bundle.
type roster struct {
	ID      string // of home's sandbox or container
	Pod     bool   `json:",omitempty"` // home is that of a sandbox, which is no container
	Socket  string // of the shim; nobody listens there when it is dead
	Members map[string]member
}

// member is a container whose bundle is not home.
type member struct {
	Bundle string
	Root   string // of its state directory, should the bundle be gone
}

// members keeps the roster of a shim.
type members struct {
	mu     sync.Mutex // held while small files are written
	home   string     // empty when the next container's bundle becomes it
	roster roster
}

// KeepMembers says in which bundle the shim was started and where it listens. It
// is called before anything is created.
func (m *Manager) KeepMembers(bundle, socket string) {
	m.members.home, m.members.roster.Socket = physical(bundle), socket
}

// add has a container of bundle known to whoever cleans up after this shim.
func (m *members) add(containerID string, of member) error {
	of.Bundle = physical(of.Bundle)
	m.mu.Lock()
	defer m.mu.Unlock()
	// Home is gone when containerd gave up on what the shim was started for.
	if _, err := os.Stat(m.home); m.home == "" || errors.Is(err, os.ErrNotExist) {
		return m.move(containerID, of.Bundle)
	}
	if of.Bundle == m.home {
		m.roster.ID = containerID
		if len(m.roster.Members) == 0 {
			return nil // the bundle says it
		}
		return m.save()
	}
	if m.roster.Members == nil {
		m.roster.Members = map[string]member{}
	}
	m.roster.Members[containerID] = of
	if err := m.roster.write(m.home); err != nil {
		delete(m.roster.Members, containerID)
		return err
	}
	return link(of.Bundle, m.home)
}

// remove is the undo of add, and may come without it. When home itself goes,
// another bundle becomes home.
func (m *members) remove(containerID, bundle string) error {
	bundle = physical(bundle)
	m.mu.Lock()
	defer m.mu.Unlock()
	if bundle == m.home && !m.roster.Pod {
		if len(m.roster.Members) == 0 {
			m.home = ""
			return nil
		}
		next := slices.Min(slices.Collect(maps.Keys(m.roster.Members)))
		err := m.move(next, m.roster.Members[next].Bundle)
		return errors.Join(err, remove(filepath.Join(bundle, rosterFile)))
	}
	if _, ok := m.roster.Members[containerID]; !ok {
		return nil
	}
	delete(m.roster.Members, containerID)
	return errors.Join(remove(filepath.Join(bundle, homeLink)), m.save())
}

// move makes the bundle of a container home. A sandbox that had it is gone, or its bundle is.
func (m *members) move(containerID, bundle string) error {
	delete(m.roster.Members, containerID)
	m.home, m.roster.ID, m.roster.Pod = bundle, containerID, false
	if err := m.save(); err != nil {
		return err
	}
	for id, other := range m.roster.Members {
		if err := link(other.Bundle, bundle); err != nil {
			log.L.WithError(err).WithField("container", id).Warn("tell where the list of the pod's containers is")
		}
	}
	return remove(filepath.Join(bundle, homeLink))
}

// setPod has home known as that of a sandbox, or not any more.
func (m *members) setPod(sandboxID, bundle string, pod bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.home, m.roster.ID, m.roster.Pod = physical(bundle), sandboxID, pod
	return m.save()
}

// save writes the roster, or removes it where it would say nothing. A home that
// is gone needs none: what cleans up after this shim would not find it.
func (m *members) save() error {
	if len(m.roster.Members) == 0 && !m.roster.Pod {
		return remove(filepath.Join(m.home, rosterFile))
	}
	err := m.roster.write(m.home)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (r roster) write(home string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replace(filepath.Join(home, rosterFile), func(path string) error { return os.WriteFile(path, data, 0o600) })
}

func readRoster(home string) (roster, error) {
	var r roster
	data, err := os.ReadFile(filepath.Join(home, rosterFile))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", rosterFile, err)
	}
	return r, nil
}

// link leads from a member's bundle to home.
func link(bundle, home string) error {
	return replace(filepath.Join(bundle, homeLink), func(path string) error { return os.Symlink(home, path) })
}

// homeOf is the bundle that has the roster, if there is one. A link that leads
// nowhere leads to a bundle that is gone.
func homeOf(bundle string) string {
	if home, err := os.Readlink(filepath.Join(bundle, homeLink)); err == nil && filepath.IsAbs(home) {
		return home
	}
	return bundle
}

// physical is the path of a bundle, which may be gone, with no link in it: bundles
// are told apart by their paths. containerd names them by its configuration, of
// /var/run say; the shim that it starts in one is told another name by the kernel.
func physical(bundle string) string {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(bundle)); err == nil {
		return filepath.Join(dir, filepath.Base(bundle))
	}
	return bundle
}
