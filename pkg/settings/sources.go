// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"regexp"
	"strings"
	"sync"
)

// withoutPlaceholders removes the placeholders from a source.
var withoutPlaceholders = strings.NewReplacer("{id}", "", "{namespace}", "", "{alloc}", "", "{task}", "")

// expandSources replaces the placeholders. It leaves out a source with a part of a Nomad task's id if the container's
// id is not one: there is no such cgroup. containerID has been checked, and so has no slash.
func expandSources(sources []string, namespace, containerID string) []string {
	if len(sources) == 0 {
		return nil
	}
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

// nomadID matches the id that Nomad's containerd driver gives the container of a task: TASK-ALLOC, and on cgroup v2
// ALLOC.TASK.scope, like the name of Nomad's cgroups (nomad-driver-containerd, getContainerName). An allocation's id is
// a UUID. It is compiled when a container has sources: no other start of the shim pays for it.
var nomadID = sync.OnceValue(func() *regexp.Regexp {
	const uuid = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`
	return regexp.MustCompile(`^(?:(.+)-(` + uuid + `)|(` + uuid + `)\.(.+?)(?:\.scope)?)$`)
})

func cutNomadID(id string) (alloc, task string, ok bool) {
	m := nomadID().FindStringSubmatch(id)
	if m == nil {
		return "", "", false
	}
	return m[2] + m[3], m[1] + m[4], true
}
