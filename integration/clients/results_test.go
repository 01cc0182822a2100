// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"sandbox.internal/shim/integration/clients/table"
)

// results is the cases that have been run, and the versions of what ran, by kind of client.
type results struct {
	mu       sync.Mutex
	rows     map[string][]table.Row
	versions map[string]string
}

func (r *results) add(d daemon, c clientCase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rows == nil {
		r.rows, r.versions = map[string][]table.Row{}, map[string]string{}
	}
	r.rows[d.kind()] = append(r.rows[d.kind()], table.Row{Case: c.name, Cell: c.cell()})
	r.versions[d.kind()] = d.versions()
}

// cell is what the table shows of a case that did as it says.
func (c clientCase) cell() string {
	var parts []string
	if c.ours+c.both == "" {
		parts = append(parts, "passed")
		if c.mask != nil {
			parts[0] += ", differs: " + c.reason
		}
	}
	for _, failed := range []struct{ who, why string }{
		{"both fail: ", c.both}, {"fails: ", c.ours}, {"the runc shim fails: ", c.runc},
	} {
		if failed.why != "" {
			parts = append(parts, failed.who+failed.why)
		}
	}
	return strings.Join(parts, "; ")
}

// columns are the results as columns of the tables.
func (r *results) columns() ([]table.Column, error) {
	on, err := machine()
	if err != nil {
		return nil, err
	}
	var all []table.Column
	for _, kind := range slices.Sorted(maps.Keys(r.rows)) {
		column := table.Column{Kind: kind, Machine: on, With: r.versions[kind], Rows: r.rows[kind]}
		if kind == shared.kind() && os.Getenv("SHIM_TEST_CLIENTS") == "debian" {
			column.Machine += ", Debian's dockerd"
		}
		all = append(all, column)
	}
	return all, nil
}

// machine names what differs between machines: their cgroups.
func machine() (string, error) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); errors.Is(err, os.ErrNotExist) {
		return "cgroup v1", nil
	} else if err != nil {
		return "", err
	}
	if !systemd() {
		return "cgroup v2", nil
	}
	version, err := exec.Command("systemctl", "--version").Output() // "systemd 252 (252.39-1~deb12u1)"
	if err != nil {
		return "", fmt.Errorf("version of systemd: %w", err)
	}
	name, _, _ := strings.Cut(string(version), " (")
	return "cgroup v2, " + name, nil
}
