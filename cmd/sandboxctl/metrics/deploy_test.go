// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// allDescs are those of series that are not one number of each container.
func allDescs() []*prometheus.Desc {
	return []*prometheus.Desc{
		upDesc, tookDesc, stateDesc, infoDesc, pressureDesc, stalledDesc, shimUpDesc, shimCPUDesc, shimRSSDesc, opsDesc,
		failedDesc,
	}
}

// names are those of all series that there can be.
func names() map[string]bool {
	all := map[string]bool{}
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	add := func(text string, suffixes ...string) {
		for _, suffix := range append(suffixes, "") {
			all[name.FindStringSubmatch(text)[1]+suffix] = true
		}
	}
	for _, m := range containerMetrics() {
		add(m.desc.String())
	}
	for _, d := range allDescs() {
		add(d.String())
	}
	add(opsDesc.String(), "_bucket", "_sum", "_count")
	return all
}

func TestDeploy_UsesSeriesThatExist(t *testing.T) {
	known := names()
	used := regexp.MustCompile(prefix + `\w+`)
	for _, file := range []string{"grafana.json", "rules.yml"} {
		text, err := os.ReadFile("../../../deploy/monitoring/" + file)
		if err != nil {
			t.Fatal(err)
		}
		found := used.FindAllString(string(text), -1)
		for _, name := range found {
			if !known[name] {
				t.Errorf("%s uses %s, which does not exist", file, name)
			}
		}
		if len(found) == 0 {
			t.Errorf("%s uses no series", file)
		}
	}
}

func TestDeploy_DashboardIsWhole(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/monitoring/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Title, UID string
		Panels     []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || d.UID == "" || len(d.Panels) == 0 {
		t.Fatalf("dashboard = %+v", d)
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	at := map[[2]int]string{}
	variable := regexp.MustCompile(`\$(\w+)`)
	for _, p := range d.Panels {
		place := [2]int{p.GridPos.X, p.GridPos.Y}
		if other := at[place]; other != "" || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q lies on %q, or beyond the edge", p.Title, other)
		}
		at[place] = p.Title
		for _, target := range p.Targets {
			if strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") {
				t.Errorf("panel %q: %s", p.Title, target.Expr)
			}
			for _, v := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if !variables[v[1]] {
					t.Errorf("panel %q uses $%s, which is no variable", p.Title, v[1])
				}
			}
		}
	}
}
