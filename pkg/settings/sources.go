// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import "strings"

// withoutPlaceholders removes the placeholders from a source.
var withoutPlaceholders = strings.NewReplacer("{id}", "", "{namespace}", "", "{alloc}", "", "{task}", "")

// expandSources replaces the placeholders. It leaves out a source with a part of a Nomad task's id if the container's
// id is not one: there is no such cgroup. containerID has been checked, and so has no slash.
func expandSources(sources []string, namespace, containerID string) []string {
	alloc, task, ofNomad := cutNomadID(containerID)
	r := strings.NewReplacer("{id}", containerID, "{namespace}", namespace, "{alloc}", alloc, "{task}", task)
	var expanded []string
	for _, source := range sources {
		if ofNomad || !strings.Contains(source, "{alloc}") && !strings.Contains(source, "{task}") {
			expanded = append(expanded, r.Replace(source))
		}
	}
	return expanded
}

// cutNomadID splits the id that Nomad's containerd driver gives the container of a task: TASK-ALLOC, and on cgroup v2
// ALLOC.TASK.scope, like the name of Nomad's cgroups (nomad-driver-containerd, getContainerName). An allocation's id is
// a UUID.
func cutNomadID(id string) (alloc, task string, ok bool) {
	const size = len("00000000-0000-0000-0000-000000000000")
	if len(id) < size+len("-t") {
		return "", "", false
	}
	cut := len(id) - size
	switch {
	case id[cut-1] == '-' && isUUID(id[cut:]):
		return id[cut:], id[:cut-1], true
	case id[size] == '.' && isUUID(id[:size]):
		return id[:size], strings.TrimSuffix(id[size+1:], ".scope"), true
	}
	return "", "", false
}

// isUUID reports whether s, of a UUID's length, is one in lower case.
func isUUID(s string) bool {
	for i, c := range []byte(s) {
		switch i {
		case 8, 13, 18, 23: //nolint:mnd // RFC 9562, section 4
			if c != '-' {
				return false
			}
		default:
			if !strings.ContainsRune("0123456789abcdef", rune(c)) {
				return false
			}
		}
	}
	return true
}
