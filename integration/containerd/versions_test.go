// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
	"sandbox.internal/shim/integration/tools"
)

// update makes TestVersions_EveryContainerdRunsTheShim write its table into docs/compatibility.md.
var update = flag.Bool("update", false, "write the table of releases into docs/compatibility.md")

const versionsFile = "../../docs/compatibility.md"

// aspect is a column of the table whose cells are tests.
type aspect struct {
	name   string
	bodies []body                                    // each with an env of its own
	group  func(t *testing.T, c *harness.Containerd) // a test with subtests of its own
}

type body struct {
	name string
	run  func(*env)
}

func aspects() []aspect {
	return []aspect{
		{name: "run, exec, kill", bodies: []body{
			{"a container and its exit", testRun},
			{"input and its end", testInput},
			{"an exec and its exit", testExec},
			{"a signal", testSignal},
		}},
		{name: "pause, stats", bodies: []body{
			{"status", testStatus},
			{"a paused container", testPaused},
			{"statistics", testStatistics},
		}},
		{name: "restart of containerd", group: testRestart},
		{name: "shim killed", group: testKilledShim},
	}
}

// The table in docs/compatibility.md is what this test saw, with SHIM_TEST_RELEASES=all of all releases.
func TestVersions_EveryContainerdRunsTheShim(t *testing.T) {
	harness.OursOnly(t, "to run under containerd 1.6 and later")
	var table strings.Builder
	header := []string{"containerd", "is answered in", "Task API"}
	for _, a := range aspects() {
		header = append(header, a.name)
	}
	tableRow(&table, header)
	tableRow(&table, strings.Split(strings.Repeat("---,", len(header)-1)+"---", ","))
	complete := true
	for _, release := range tools.Releases() {
		complete = t.Run("containerd "+release.Name,
			func(t *testing.T) { tableRow(&table, testRelease(t, release)) }) && complete
	}
	if !complete || strings.Count(table.String(), "\n") != len(tools.Releases())+2 {
		return // some were filtered out by -run, or could not be had
	}
	if err := section.WantLines(versionsFile, "versions", table.String(), *update && tools.AllReleases()); err != nil {
		t.Errorf("%v\n(make test-releases WRITE=1)", err)
	}
}

func tableRow(table *strings.Builder, cells []string) {
	fmt.Fprintf(table, "| %s |\n", strings.Join(cells, " | "))
}

// testRelease runs every check under one release and returns its row.
func testRelease(t *testing.T, release tools.Release) []string {
	t.Helper()
	binary, err := release.Provide(t.Context())
	if err != nil {
		unavailable(t, "containerd "+release.Name, err)
	}
	programs := shared.Env
	programs.Daemon = binary
	tap := newWiretap(t, programs.Shim)
	programs.Shim = tap.shim
	c := startContainerd(t, programs)
	e := newEnvOn(t, c)
	e.run("first", config{}, "sleep", "1000").kill()
	first := tap.answers(t)[0]
	cells := []string{c.Version, first.form, fmt.Sprintf("v%d", first.version)}
	for _, a := range aspects() {
		ok := t.Run(a.name, func(t *testing.T) {
			for _, b := range a.bodies {
				t.Run(b.name, func(t *testing.T) { b.run(newEnvOn(t, c)) })
			}
			if a.group != nil {
				a.group(t, c)
			}
		})
		cell := "works"
		if !ok {
			cell = "fails"
		}
		cells = append(cells, cell)
	}
	for _, a := range tap.answers(t) {
		harness.Eventually(t, "every shim removes its socket",
			func() error { return absent(strings.TrimPrefix(a.address, "unix://")) })
	}
	return cells
}

// unavailable skips a test for lack of what err says; in CI nothing may be left out.
func unavailable(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s: %v", what, err)
	}
	t.Skipf("NOT TESTED: %s: %v", what, err)
}

// wiretap is a program in the shim's place that copies what each start reads and writes to files, and becomes the shim.
type wiretap struct {
	shim string // path of that program
}

func newWiretap(t *testing.T, shim string) wiretap {
	t.Helper()
	w := wiretap{shim: filepath.Join(t.TempDir(), filepath.Base(shim))}
	script := fmt.Sprintf(`#!/bin/bash
if [ "${!#}" = start ]; then
	exec %q "$@" < <(tee "$0.$$.in") > >(tee "$0.$$.out")
fi
exec %[1]q "$@"
`, shim)
	if err := os.WriteFile(w.shim, []byte(script), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return w
}

// answer is what a start command returned to containerd.
type answer struct {
	form    string
	version int32 // of the Task API that containerd uses after it
	address string
}

// answers reads what has been heard so far.
func (w wiretap) answers(t *testing.T) []answer {
	t.Helper()
	names, err := filepath.Glob(w.shim + ".*.out")
	if err != nil || len(names) == 0 {
		t.Fatalf("answers of the shim: %q, %v, want one at least", names, err)
	}
	var all []answer
	for _, out := range names {
		answered, err := os.ReadFile(out)
		harness.Must(t, err)
		asked, err := os.ReadFile(out[:len(out)-len("out")] + "in")
		harness.Must(t, err)
		all = append(all, readAnswer(t, asked, answered))
	}
	return all
}

// readAnswer reads an answer as a containerd that asked so does.
func readAnswer(t *testing.T, asked, answered []byte) answer {
	t.Helper()
	// Options, which earlier releases send, have no containerd version.
	var params bootstrap.BootstrapParams
	if err := proto.Unmarshal(asked, &params); err == nil && params.GetContainerdVersion() != "" {
		var result bootstrap.BootstrapResult
		if err := proto.Unmarshal(answered, &result); err != nil {
			t.Fatalf("answer %q: %v", answered, err)
		}
		return answer{"protobuf", result.GetVersion(), result.GetAddress()}
	}
	if !bytes.HasPrefix(answered, []byte("{")) {
		return answer{"plain text", 2, string(answered)}
	}
	var result struct {
		Version int32
		Address string
	}
	if err := json.Unmarshal(answered, &result); err != nil {
		t.Fatalf("answer %q: %v", answered, err)
	}
	return answer{"JSON", result.Version, result.Address}
}

func absent(name string) error {
	_, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("%s is there: %w", name, err)
}
