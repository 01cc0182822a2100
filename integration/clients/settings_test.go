// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// The runtimes of the shared Docker beside the one of README.
const (
	withOptions = "sandbox-options" // that of docs/configuration.md
	runcByType  = "runc-by-type"    // the runc shim as this one is named
)

// optionsFile is the file of options of the runtime withOptions.
func (d *dockerd) optionsFile() string { return filepath.Join(d.dir, "options.toml") }

// runtimes are those for daemon.json, as the pages write them.
func (d *dockerd) runtimes() (map[string]any, error) {
	all, err := documented("../../README.md")
	if err != nil {
		return nil, err
	}
	more, err := documented("../../docs/configuration.md")
	if err != nil {
		return nil, err
	}
	runtime, _ := more["sandbox"].(map[string]any)
	options, ok := runtime["options"].(map[string]any)
	if _, names := options["ConfigPath"]; !ok || !names {
		return nil, fmt.Errorf("docs/configuration.md names no file of options: %v", more)
	}
	options["ConfigPath"] = d.optionsFile()
	all[withOptions] = runtime
	all[runcByType] = map[string]any{"runtimeType": "io.containerd.runc.v2"}
	return all, nil
}

// documented returns the runtimes in a page's daemon.json.
func documented(page string) (map[string]any, error) {
	text, err := section.Block(page, "json", `"runtimes"`)
	if err != nil {
		return nil, err
	}
	var file struct{ Runtimes map[string]any }
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		return nil, fmt.Errorf("%s: %w", page, err)
	}
	return file.Runtimes, nil
}

// Docker's containers get the options that daemon.json names, and where it names none those of the default
// configuration file: all of them, or those of Docker's namespace.
func TestDocker_Settings(t *testing.T) {
	pids := t.TempDir()
	// start runs a container, and compares where its process id is with what is wanted.
	start := func(runtime, want string) {
		t.Helper()
		played.Add(1)
		id, err := shared.docker(t.Context(), nil, "run", "--detach", "--runtime", runtime, "busybox", "sleep", "1000")
		harness.Must(t, err)
		id = strings.TrimSpace(id)
		pid, err := shared.docker(t.Context(), nil, "inspect", "--format", "{{.State.Pid}}", id)
		harness.Must(t, err)
		got := map[string]string{}
		files, err := filepath.Glob(filepath.Join(pids, "*", id))
		harness.Must(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			harness.Must(t, err)
			got[filepath.Base(filepath.Dir(file))] = strings.TrimSpace(string(text))
		}
		if diff := cmp.Diff(map[string]string{want: strings.TrimSpace(pid)}, got); diff != "" {
			t.Errorf("files of the process id of a container of %s (-want +got):\n%s", runtime, diff)
		}
		if err := shared.clean(t.Context()); err != nil {
			t.Error(err)
		}
	}
	in := func(dir string) string {
		harness.Must(t, os.MkdirAll(filepath.Join(pids, dir), 0o755))
		return fmt.Sprintf("PidFile = '%s/{id}'\n", filepath.Join(pids, dir))
	}
	harness.Must(t, os.WriteFile(shared.optionsFile(), []byte(in("options")), 0o600))
	start(withOptions, "options")
	t.Run("of all", func(t *testing.T) {
		cri.SetDefaults(t, in("all"))
		start("sandbox", "all")
		start(withOptions, "options")
	})
	t.Run("of the namespace", func(t *testing.T) {
		cri.SetDefaults(t, in("all")+"[namespace."+namespace+"]\n"+in("docker"))
		start("sandbox", "docker")
	})
	if left := shared.left(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What docs/compatibility.md says of mounts below a read-only one: the kind of runtime decides, not the shim.
func TestDocker_MountsBelowReadonly(t *testing.T) {
	played.Add(1)
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	harness.Must(t, os.Mkdir(below, 0o755))
	harness.Must(t, harness.Mount("tmpfs", below, "tmpfs", 0))
	harness.AtEnd(t, func() error { return unix.Unmount(below, unix.MNT_DETACH) })
	for _, tt := range []struct{ runtime, options, want string }{
		{"runc", "readonly", "Read-only file system"},
		{runcByType, "readonly", ""}, // writable
		{"sandbox", "readonly", ""},
		{"sandbox", "readonly,bind-recursive=readonly,bind-propagation=rprivate", "rro is not supported by runtime"},
		{"sandbox", "readonly,bind-recursive=disabled", "Read-only file system"}, // nothing is mounted below
	} {
		out, err := shared.docker(t.Context(), nil, "run", "--rm", "--runtime", tt.runtime,
			"--mount", "type=bind,source="+dir+",target=/d,"+tt.options, "busybox", "touch", "/d/below/file")
		if text := fmt.Sprint(out, err); (err == nil) != (tt.want == "") || !strings.Contains(text, tt.want) {
			t.Errorf("touch below a mount with %s, by %s: %s, want %q", tt.options, tt.runtime, text, tt.want)
		}
	}
	if left := shared.left(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
