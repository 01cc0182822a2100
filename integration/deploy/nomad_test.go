// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2/hclsimple"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// nomadFile is what a block of HCL in docs/nomad.md may have: Nomad's own schema, as far as the page uses it.
type nomadFile struct {
	Plugins []struct {
		Name   string `hcl:"name,label"`
		Config struct {
			AllowRuntimes []string `hcl:"allow_runtimes,optional"`     // docker
			Enabled       bool     `hcl:"enabled,optional"`            // containerd-driver
			Runtime       string   `hcl:"containerd_runtime,optional"` // containerd-driver
		} `hcl:"config,block"`
	} `hcl:"plugin,block"`
	Jobs []struct {
		Name   string `hcl:"name,label"`
		Groups []struct {
			Name  string `hcl:"name,label"`
			Tasks []struct {
				Name   string `hcl:"name,label"`
				Driver string `hcl:"driver"`
				Config struct {
					Image   string   `hcl:"image"`
					Command string   `hcl:"command"`
					Args    []string `hcl:"args"`
					Runtime string   `hcl:"runtime,optional"` // docker
				} `hcl:"config,block"`
			} `hcl:"task,block"`
		} `hcl:"group,block"`
	} `hcl:"job,block"`
}

// Nomad cannot be had here. What its page shows fits together: jobs name drivers that are configured, and runtimes that
// Nomad's client allows and Docker knows by the daemon.json of README, with which the tests of Docker run.
func TestDocs_Nomad(t *testing.T) {
	const page = "../../docs/nomad.md"
	blocks, err := section.Blocks(page)
	if err != nil {
		t.Fatal(err)
	}
	runtimes := map[string][]string{} // by driver; none is the plugin's own
	var drivers []string
	for i, b := range blocks {
		if b.Language != "hcl" {
			continue
		}
		var file nomadFile
		if err := hclsimple.Decode(fmt.Sprintf("block%d.hcl", i), []byte(b.Text), nil, &file); err != nil {
			t.Fatal(err)
		}
		for _, p := range file.Plugins {
			runtimes[p.Name] = p.Config.AllowRuntimes
			if p.Name != "docker" {
				runtimes[p.Name] = []string{""}
				if !p.Config.Enabled || p.Config.Runtime != harness.Ours {
					t.Errorf("plugin %s is not enabled, or for another runtime: %+v", p.Name, p.Config)
				}
			}
		}
		for _, job := range file.Jobs {
			task := job.Groups[0].Tasks[0]
			drivers = append(drivers, task.Driver)
			if !slices.Contains(runtimes[task.Driver], task.Config.Runtime) {
				t.Errorf("the job of driver %s names the runtime %q; allowed are %q", task.Driver, task.Config.Runtime, runtimes[task.Driver])
			}
		}
	}
	if want := []string{"docker", "containerd-driver"}; !slices.Equal(drivers, want) {
		t.Errorf("jobs are for the drivers %q, want %q", drivers, want)
	}
	docker, err := section.Block(page, "json", `"runtimes"`)
	if err != nil {
		t.Fatal(err)
	}
	if readme, err := section.Block("../../README.md", "json", `"runtimes"`); err != nil || docker != readme {
		t.Errorf("daemon.json of docs/nomad.md is %s, that of README %s, %v", docker, readme, err)
	}
	for _, runtime := range runtimes["docker"] {
		if runtime != "runc" && !strings.Contains(docker, strconv.Quote(runtime)+":") {
			t.Errorf("Nomad's client allows the runtime %s, which daemon.json does not have", runtime)
		}
	}
}
