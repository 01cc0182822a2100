// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// node80 runs a pod of two containers of this shim, a container of this shim, and one of runc's.
func node80(t *testing.T) *patient {
	t.Helper()
	p := newPatient(t, nil)
	p.start("web", harness.Ours, inGroup("web"), busy(), oci.WithCPUCFS(20000, 100000), oci.WithMemoryLimit(64<<20))
	p.start("helper", harness.Ours, inGroup("web"), sleeping())
	p.start("single", harness.Ours, sleeping())
	p.start("old", runc, sleeping())
	return p
}

func TestTop_OnceForScripts(t *testing.T) {
	p := node80(t)
	var out bytes.Buffer
	base := []string{binary, "--address", p.Address, "--state", p.State}
	runs(t, &out, append(base, "-o", "json", "top", "--once", "--interval", "500ms")...)
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
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	var text strings.Builder
	for _, pod := range got.Pods {
		for _, c := range pod.Containers {
			fmt.Fprintln(&text, pod.Name, pod.Sandbox, c.ID)
			if c.ID == "web" && (c.Rates.CPU <= 0 || c.Rates.CPU > 0.3 || c.Rates.Throttled <= 0) {
				t.Errorf("the busy container: %+v, want at most 0.2 of a CPU, throttled", c)
			}
		}
	}
	const want = "old false old\nsingle false single\nweb true helper\nweb true web\n"
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", text.String(), want)
	}
	out.Reset()
	runs(t, &out, append(base, "top", "--once", "--interval", "200ms")...)
	for _, name := range []string{"old", "single", "web", "helper", "SOURCE"} {
		if !strings.Contains(out.String(), name) {
			t.Errorf("the table has no %s:\n%s", name, out.String())
		}
	}
}

func TestTop_RefusesWhatItCannotDo(t *testing.T) {
	p := newPatient(t, nil)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"top"}, "must be a terminal: add --once"},
		{[]string{"top", "--once", "--interval", "100ms"}, "--interval 100ms: must be 200ms or more"},
		{[]string{"-o", "json", "top"}, "only with --once"},
	} {
		out, err := exec.CommandContext(t.Context(), binary, append([]string{"--address", p.Address, "--state", p.State}, tt.args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%q: %v, %q, want an error with %q", tt.args, err, out, tt.want)
		}
	}
}

// inGroup makes a container one of a pod.
func inGroup(id string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{"io.containerd.runc.v2.group": id})
}

// busy is a program that uses a CPU as far as its limit lets it.
func busy() oci.SpecOpts { return oci.WithProcessArgs("sh", "-c", "while :; do :; done") }

func sleeping() oci.SpecOpts { return oci.WithProcessArgs("sleep", "1000") }
