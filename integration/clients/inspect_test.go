// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// perRun names what docker inspect says that differs between any two runs.
var perRun = []string{"Created", "FinishedAt", "Log", "Pid", "Runtime", "SandboxKey", "StartedAt"}

// inspect puts what docker inspect says of the containers that there are into the account.
func (d *dockerd) inspect(s *session) {
	ids, err := d.docker(s.ctx, nil, "ps", "--all", "--quiet", "--no-trunc")
	s.must(err, "list containers")
	list := strings.Fields(ids)
	if len(list) == 0 {
		return
	}
	text, err := d.docker(s.ctx, nil, append([]string{"inspect"}, list...)...)
	s.must(err, "inspect")
	var all []map[string]any
	s.must(json.Unmarshal([]byte(text), &all), "inspect")
	slices.SortFunc(all, func(a, b map[string]any) int { return strings.Compare(fmt.Sprint(a["Name"]), fmt.Sprint(b["Name"])) })
	for _, said := range all {
		without(said)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", " ")
	s.must(e.Encode(all), "inspect")
	s.account.Write(out.Bytes())
}

// without removes what is volatile from parsed JSON.
func without(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range perRun {
			delete(v, name)
		}
		for _, child := range v {
			without(child)
		}
	case []any:
		for _, child := range v {
			without(child)
		}
	}
}
