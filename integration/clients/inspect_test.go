// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sandbox.internal/shim/integration/script"
)

// perRun names what docker inspect says that differs between any two runs.
var perRun = []string{"Created", "FinishedAt", "Log", "Pid", "Runtime", "SandboxKey", "StartedAt"}

// inspect puts what docker inspect says of the containers that there are into the account.
func (d *dockerd) inspect(s *session) {
	ids, err := d.docker(s.Context, nil, "ps", "--all", "--quiet", "--no-trunc")
	s.Must(err, "list containers")
	list := strings.Fields(ids)
	if len(list) == 0 {
		return
	}
	text, err := d.docker(s.Context, nil, append([]string{"inspect"}, list...)...)
	s.Must(err, "inspect")
	s.noteJSON(text)
}

// noteJSON puts what inspect says of containers into the account, without what differs between any two runs.
func (s *session) noteJSON(text string, more ...string) {
	var all []map[string]any
	s.Must(json.Unmarshal([]byte(text), &all), "inspect")
	slices.SortFunc(all, func(a, b map[string]any) int { return strings.Compare(fmt.Sprint(a["Name"]), fmt.Sprint(b["Name"])) })
	for _, said := range all {
		script.Delete(said, append(more, perRun...)...)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	s.Must(e.Encode(all), "inspect")
	s.Note(out.String())
}
