// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes files in a directory.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

func TestRates_AreSinceTheEarlierSnapshot(t *testing.T) {
	start := time.Unix(1000, 0)
	before := Container{ReadAt: start, ExecsStarted: 2, ExecsKnown: true, Usage: measure.Usage{
		Cgroup: "/c", CPU: time.Second, Periods: 10, Throttled: 1, OOMKills: 1,
	}}
	after := Container{ReadAt: start.Add(2 * time.Second), ExecsStarted: 8, ExecsKnown: true, Usage: measure.Usage{
		Cgroup: "/c", CPU: 4 * time.Second, Periods: 20, Throttled: 6, OOMKills: 3,
	}}
	want := Rates{CPU: 1.5, Throttled: 0.5, Execs: 3, OOMKills: 2}
	if got := after.RatesSince(&before); got != want {
		t.Errorf("rates = %+v, want %+v", got, want)
	}
	again := before
	again.ReadAt = after.ReadAt.Add(time.Second)
	if got := again.RatesSince(&after); got != (Rates{}) {
		t.Errorf("rates of a container that was made again = %+v, want none", got)
	}
	unknown := before
	unknown.Usage.Unknown.OOMKills, unknown.Usage.OOMKills = true, 0
	if got := after.RatesSince(&unknown); got != (Rates{}) {
		t.Errorf("rates since what was not known = %+v, want none", got)
	}
	if got := after.RatesSince(&Container{State: Dead}); got != (Rates{}) {
		t.Errorf("rates since a look of which nothing was known = %+v, want none", got)
	}
	if got := (&Container{State: Dead}).RatesSince(&Container{}); got != (Rates{}) {
		t.Errorf("rates of what is not known = %+v, want none", got)
	}
	silent := before
	silent.ExecsStarted, silent.ExecsKnown = 0, false
	if got := after.RatesSince(&silent); got.Execs != 0 || got.CPU != want.CPU {
		t.Errorf("rates since a look at which no execs were known = %+v, want the others alone", got)
	}
	sameTime := before
	sameTime.ReadAt = after.ReadAt
	if got := after.RatesSince(&sameTime); got != (Rates{}) {
		t.Errorf("rates of no time = %+v, want none", got)
	}
}

func TestFind_NamesOne(t *testing.T) {
	s := &Snapshot{Pods: []Pod{
		{Namespace: "a", ID: "web-1", Containers: []Container{{Namespace: "a", ID: "web-1"}}},
		{Namespace: "b", ID: "web-1", Containers: []Container{{Namespace: "b", ID: "web-1"}}},
		{Namespace: "a", ID: "box", Sandbox: true, Containers: []Container{{Namespace: "a", ID: "box"}, {Namespace: "a", ID: "member"}}},
		{Namespace: "a", ID: "empty", Sandbox: true},
		{Namespace: "a", ID: "w", Containers: []Container{{Namespace: "a", ID: "w"}}},
	}}
	for id, want := range map[string]string{"mem": "member", "box": "box", "e": "empty", "w": "w", "web-1": "", "web": "", "": "", "x": ""} {
		if _, got, err := s.Find(id); got != want || (err == nil) != (want != "") {
			t.Errorf("Find(%q) = %q, %v, want %q", id, got, err, want)
		}
	}
}

// jq ends with an error at the null of `.pods[].containers[]`.
func TestPods_WithoutContainersHaveAnEmptyList(t *testing.T) {
	n := &Node{sandboxes: []*sandbox{{key: key{"ns", "empty"}, pod: "default/web"}}}
	text, err := json.Marshal(n.pods())
	must(t, err)
	if !strings.Contains(string(text), `"containers":[]`) {
		t.Errorf("pods = %s, want an empty list of containers", text)
	}
}
