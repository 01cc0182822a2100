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
		failedDesc, oomDesc,
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
		found := used.FindAllString(deployed(t, file), -1)
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

func deployed(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/monitoring/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The series of an exporter that does not run are absent, so that no rule on them holds.
func TestDeploy_AnAlertTellsThatTheExporterDoesNotRun(t *testing.T) {
	job := regexp.MustCompile(`job_name: (\S+)`).FindStringSubmatch(deployed(t, "prometheus.yml"))
	if job == nil || !strings.Contains(deployed(t, "rules.yml"), `expr: up{job="`+job[1]+`"} == 0`) {
		t.Errorf("no alert on the target of job %v", job)
	}
}

// systemd gives up a service that has failed five times in ten seconds, for good.
func TestDeploy_UnitIsStartedAgainWhateverHappens(t *testing.T) {
	unit := deployed(t, "sandboxctl-metrics.service")
	head, service, _ := strings.Cut(unit, "[Service]")
	if !strings.Contains(head, "\nStartLimitIntervalSec=0\n") || !strings.Contains(service, "\nRestartSec=5\n") {
		t.Errorf("the unit is given up:\n%s", unit)
	}
}

func TestDeploy_DashboardIsWhole(t *testing.T) {
	var d struct {
		Title, UID string
		Panels     []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Name, AllValue string
				IncludeAll     bool
			}
		}
	}
	if err := json.Unmarshal([]byte(deployed(t, "grafana.json")), &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || d.UID == "" || len(d.Panels) == 0 {
		t.Fatalf("dashboard = %+v", d)
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if v.IncludeAll && v.AllValue != ".*" { // else All is the values of one series, and others have more
			t.Errorf("All of the variable %s = %q, want .*", v.Name, v.AllValue)
		}
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
