// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// A pod of two containers of this shim, of which one is throttled, and a container of runc's.
func TestTop_OnceForScripts(t *testing.T) {
	e := newEnv(t)
	pod := oci.WithAnnotations(map[string]string{"io.containerd.runc.v2.group": "web"})
	e.run("web", harness.Ours, []oci.SpecOpts{
		pod, oci.WithProcessArgs("sh", "-c", "while :; do :; done"), oci.WithCPUCFS(20000, 100000),
	})
	e.run("helper", harness.Ours, []oci.SpecOpts{pod})
	e.run("old", runc, nil)
	var got struct {
		Pods []struct {
			Name       string
			Sandbox    bool
			Containers []struct {
				ID    string
				Rates struct{ CPU, Throttled float64 }
			}
		}
	}
	e.must(json.Unmarshal([]byte(e.ctl("-o", "json", "top", "--once", "--interval", "500ms")), &got))
	var text strings.Builder
	for _, pod := range got.Pods {
		for _, c := range pod.Containers {
			fmt.Fprintln(&text, pod.Name, pod.Sandbox, c.ID)
			if c.ID == "web" && (c.Rates.CPU <= 0 || c.Rates.CPU > 0.3 || c.Rates.Throttled <= 0) {
				t.Errorf("the busy container: %+v, want at most 0.2 of a CPU, throttled", c)
			}
		}
	}
	if want := "old false old\nweb true helper\nweb true web\n"; text.String() != want {
		t.Errorf("got\n%swant\n%s", text.String(), want)
	}
	if table := e.ctl("top", "--once", "--interval", "200ms"); !strings.Contains(table, "helper") || !strings.Contains(table, "SOURCE") {
		t.Errorf("the table has no helper or no source:\n%s", table)
	}
}

func TestTop_RefusesWhatItCannotDo(t *testing.T) {
	e := newEnv(t)
	for want, args := range map[string][]string{
		"must be a terminal: add --once":          {"top"},
		"--interval 100ms: must be 200ms or more": {"top", "--once", "--interval", "100ms"},
		"only with --once":                        {"-o", "json", "top"},
	} {
		if said := e.refused(args...); !strings.Contains(said, want) {
			t.Errorf("%q: %q, want an error with %q", args, said, want)
		}
	}
}
