// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
	"sandbox.internal/shim/integration/tools"
)

// update makes TestVersions_EveryContainerdRunsPods write its table into docs/compatibility.md.
var update = flag.Bool("update", false, "write the table of pods into docs/compatibility.md")

// The table in docs/compatibility.md is what this test saw. Under 2.4 the other tests run pods, under 1.6 and 1.7 those
// of integration/deploy.
func TestVersions_EveryContainerdRunsPods(t *testing.T) {
	harness.OursOnly(t, "to run under containerd 1.6 and later")
	if !tools.AllReleases() {
		t.Skip("NOT TESTED here: pods under each release of containerd: make test-releases")
	}
	table := "| containerd | a pod with a pause container | without |\n| --- | --- | --- |\n"
	complete := true
	for _, release := range tools.Releases() {
		complete = t.Run("containerd "+release.Name, func(t *testing.T) { table += podsOf(t, release) }) && complete
	}
	if !complete || strings.Count(table, "\n") != len(tools.Releases())+2 {
		return // some were filtered out by -run, or could not be had
	}
	if err := section.WantLines("../../docs/compatibility.md", "versions-pods", table, *update); err != nil {
		t.Errorf("%v\n(make test-releases WRITE=1)", err)
	}
}

// podsOf runs pods under one release and returns its row.
func podsOf(t *testing.T, release tools.Release) string {
	t.Helper()
	binary, err := release.Provide(t.Context())
	switch {
	case err != nil && os.Getenv("CI") != "":
		t.Fatal(err)
	case err != nil:
		t.Skipf("NOT TESTED: containerd %s: %v", release.Name, err)
	}
	programs := shared.Env
	programs.Daemon = binary
	version, err := harness.DaemonVersion(binary)
	harness.Must(t, err)
	configure, cells := cri.Configured, []string{version}
	if strings.HasPrefix(version, "1.") {
		configure = config1
	}
	d := startDaemon(t, programs, configure)
	for _, way := range sandboxers {
		if way == cri.Shim && release.Name < "2.3" {
			cells = append(cells, "not in this release")
			continue
		}
		cell := "works"
		if !t.Run(way, func(t *testing.T) { testPod(newEnvOn(t, d, way)) }) {
			cell = "fails"
		}
		cells = append(cells, cell)
	}
	return fmt.Sprintf("| %s |\n", strings.Join(cells, " | "))
}

func testPod(e *env) {
	p := e.pod("p")
	c := p.run("c", []string{"sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do usleep 10000; done"})
	c.wantLog("ready\n")
	c.wantExec("well", "echo", "well")
	other := p.run("other", []string{"sh", "-c", "exit 7"})
	other.wantExit(7)
	c.stop(10)
	c.wantExit(9)
	p.remove()
}

func config1(c *harness.Containerd) []byte {
	const plugin = `plugins."io.containerd.grpc.v1.cri"`
	return fmt.Appendf(nil, `version = 2
root = %q
state = %q
imports = []
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.devmapper",
]
[grpc]
  address = %q
[%[4]s]
  sandbox_image = %q
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  restrict_oom_score_adj = true
  [%[4]s.cni]
    bin_dir = %[6]q
    conf_dir = %[7]q
  [%[4]s.containerd]
    default_runtime_name = %[8]q
    [%[4]s.containerd.runtimes.%[8]s]
      runtime_type = %[9]q
`, filepath.Join(c.Dir, "root"), c.State, c.Address, plugin, harness.PauseImage, "/usr/lib/cni",
		filepath.Join(c.Dir, "net.d"), cri.PodSandbox, c.Env.Runtime)
}
