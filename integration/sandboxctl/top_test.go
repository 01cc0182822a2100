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
	"golang.org/x/sys/unix"

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

func TestTop_ShowsPodsOfEachShim(t *testing.T) {
	p := node80(t)
	x := p.top("--interval", "200ms")
	x.waitText("containers: 4")
	x.press("<") // by name
	x.waitText("sorted by NAME")
	x.press(home)
	x.waitNames("all", "> old\n  single\n  web\n    helper\n    web")
	header := x.lines()[2]
	if want := "  NAME                 CPU%    MEM  LIMIT    PSI  PIDS EXEC/S  OOM  THR% CPUS"; header != want {
		t.Errorf("header = %q, want %q", header, want)
	}
	x.wait("the load and the limit of the container that is busy", func(lines []string) bool {
		f := strings.Fields(lines[7])
		return len(f) == 10 && f[3] == "64M" && between(f[1], 1, 25) && between(f[8], 1, 100)
	})
	old := harness.Shims(p.namespace, "old")
	x.waitText(fmt.Sprintf("shim runc %d", old[0].Pid)) // of the chosen row
	x.press(down)
	x.waitText(fmt.Sprintf("shim sandbox %d", p.shim("single")))

	x.press("/SING")
	x.waitNames("while a filter is typed", "> single")
	x.waitText("filter: SING_")
	x.press(enter)
	x.waitText("filter: SING (esc ends it)")
	x.press(escape)
	x.waitNames("without a filter", "  old\n> single\n  web\n    helper\n    web")
	x.press("/runc" + enter)
	x.waitNames("of a runtime", "> old")
	x.press(escape)
	x.waitNames("all again", "> old\n  single\n  web\n    helper\n    web")
	x.press(">") // by CPU
	x.waitText("sorted by CPU%")
	x.wait("the busy pod first", func([]string) bool { return strings.HasPrefix(x.names(), "  web\n    web\n    helper\n") })

	// What comes and goes is seen.
	p.start("more", harness.Ours, sleeping())
	x.waitText("containers: 5")
	p.ctr("task", "rm", "-f", "more")
	p.ctr("container", "rm", "more")
	x.waitText("containers: 4")
	x.press("q")
	x.wantRestored()
}

// between reports whether a text is a number of a range.
func between(text string, least, most float64) bool {
	var n float64
	_, err := fmt.Sscan(text, &n)
	return err == nil && n >= least && n <= most
}

func TestTop_ShowsProcesses(t *testing.T) {
	p := node80(t)
	x := p.top("--interval", "200ms")
	x.waitText("containers: 4")
	x.press("/helper" + enter + end + enter)
	x.waitText("processes of helper, container helper in namespace " + p.namespace)
	x.waitText("1 processes, sorted by CPU%")
	exec := exec.Command(p.Env.Tools+"/ctr", "--address", p.Address, "--namespace", p.namespace,
		"task", "exec", "--exec-id", "burn", "helper", "sh", "-c", "while :; do :; done")
	p.must(exec.Start())
	defer func() { _ = exec.Process.Kill(); _ = exec.Wait() }() // it has ended with its exec if the test passed
	x.wait("the exec, with its id and what it uses", func(lines []string) bool {
		f := strings.Fields(lines[3]) // PID EXEC CPU% TIME MEM NAME
		return len(f) == 6 && f[1] == "burn" && between(f[2], 0.1, 120) && f[5] == "sh"
	})
	x.wait("the container's own", func(lines []string) bool {
		f := strings.Fields(lines[4])
		return len(f) == 6 && f[1] == "-" && f[2] == "0.0" && f[5] == "sleep"
	})
	p.ctr("task", "kill", "--exec-id", "burn", "--signal", "KILL", "helper")
	x.waitText("1 processes")
	x.press(escape)
	x.waitNames("back", "  web\n>   helper")
	x.press(escape)
	x.wait("all", func([]string) bool { return strings.Contains(x.names(), "single") })

	x.press("/old" + enter + end + enter)
	x.waitText("error: old: its shim is of another runtime")
	x.press("q")
	x.wantRestored()
}

func TestTop_ASignalEndsIt(t *testing.T) {
	p := newPatient(t, nil)
	p.run("c1")
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		x := p.top()
		x.waitText("containers: 1")
		p.must(x.cmd.Process.Signal(signal))
		x.wantRestored()
	}
}

func TestTop_ContainerdGoesAndComesBack(t *testing.T) {
	p := newPatient(t, nil)
	p.run("c1")
	x := p.top("--interval", "200ms")
	x.waitText("containers: 1")
	p.must(p.Kill())
	x.waitText("error: ")
	if got := x.names(); got != "> c1" {
		t.Errorf("rows without containerd: %q, want what was there", got)
	}
	p.must(p.Start(t.Context()))
	x.wait("an answer again", func(lines []string) bool { return strings.HasPrefix(lines[1], "pressure") })
	x.press("q")
	x.wantRestored()
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
