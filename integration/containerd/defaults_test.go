// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// withDefaults runs containerd, and its shims, where the directory of the default configuration file is another:
// containerd --config FILE. No option: --version.
const withDefaults = `#!/bin/sh
set -e
[ "$1" = --config ] || exec %[2]s "$@"
export etc=%[1]s
exec unshare --mount --propagation slave sh -e -c '
	mount -t tmpfs -o mode=755 tmpfs "$etc/overlay"
	mkdir "$etc/overlay/upper" "$etc/overlay/work"
	mount -t overlay -o "lowerdir=/etc,upperdir=$etc/overlay/upper,workdir=$etc/overlay/work" overlay /etc
	mkdir -p /etc/containerd-shim-sandbox-v1
	mount --bind "$etc/config" /etc/containerd-shim-sandbox-v1
	exec %[2]s "$@"' sh "$@"
`

const defaultFile = "/etc/containerd-shim-sandbox-v1/config.toml"

// newDefaultsEnv is newEnv on a containerd of its own whose default configuration file is returned.
func newDefaultsEnv(t *testing.T) (e *env, file string) {
	t.Helper()
	harness.OursOnly(t, "a default configuration file")
	etc := publicDir(t)
	for _, dir := range []string{"overlay", "config"} {
		if err := os.Mkdir(filepath.Join(etc, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	programs := shared.Env
	script := filepath.Join(t.TempDir(), "containerd")
	if err := os.WriteFile(script, fmt.Appendf(nil, withDefaults, etc, programs.Daemon), 0o755); err != nil {
		t.Fatal(err)
	}
	programs.Daemon = script
	return newEnvOn(t, startContainerd(t, programs)), filepath.Join(etc, "config", "config.toml")
}

func TestDefaults_OfContainersWithoutOptions(t *testing.T) {
	e, file := newDefaultsEnv(t)
	write := func(text string) { e.must(os.WriteFile(file, []byte(text), 0o600), "write the file") }
	none := client.WithRuntime(e.containerd.Env.Runtime, nil)
	pids := publicDir(t)

	e.run("before", config{new: []client.NewContainerOpts{none}}, "true").wantExit(0)
	write("PidFile = '" + pids + "/other-{id}'\n[namespace.'" + e.namespace + "']\nPidFile = '" + pids + "/{namespace}-{id}'\n")
	c := e.run("c1", config{new: []client.NewContainerOpts{none}}, "sleep", "1000")
	pid, err := os.ReadFile(filepath.Join(pids, e.namespace+"-c1"))
	if got := strings.TrimSpace(string(pid)); err != nil || got != fmt.Sprint(c.Task.Pid()) {
		t.Errorf("the pid file of the default configuration has %q, %v, want %d", got, err, c.Task.Pid())
	}
	e.wantLog(defaultFile)
	info, err := e.client.RuntimeInfo(e.ctx, e.containerd.Env.Runtime, nil)
	e.must(err, "runtime info")
	if got := info.Annotations["io.containerd.sandbox.v1/config"]; !strings.Contains(got, `"PidFile":"`+pids+`/other-{id}"`) {
		t.Errorf("-info shows %q, want what the file says", got)
	}
	own := e.run("c2", config{new: withOptions(e, "StopSignal = 'INT'")}, "sleep", "1000")
	if names, err := os.ReadDir(pids); err != nil || len(names) != 1 {
		t.Errorf("pid files: %v, %v, want that of c1 alone", names, err)
	}
	c.kill()
	own.kill()

	// Each change is for the next container, also of a shim that runs.
	write("StopTimeot = '1s'")
	_, err = e.tryCreate("c3", config{new: []client.NewContainerOpts{none}}, "true")
	wantError(t, err, nil, defaultFile+": unknown key StopTimeot; known are")
	write("")
	e.must(os.Chmod(file, 0o666), "let others write it")
	_, err = e.tryCreate("c4", config{new: []client.NewContainerOpts{none}}, "true")
	wantError(t, err, nil, defaultFile+": must be writable by its owner alone, not have mode 0666")
	e.must(os.Chmod(file, 0o600), "let nobody else write it")
	e.run("c5", config{new: []client.NewContainerOpts{none}}, "true").wantExit(0)
}

// A file that cannot be read is no file that is absent.
func TestDefaults_ThatCannotBeReadAreNamed(t *testing.T) {
	e, file := newDefaultsEnv(t)
	e.must(unix.Mkfifo(file, 0o600), "make a fifo") // which would let a careless reader wait
	began := time.Now()
	_, err := e.tryCreate("c1", config{}, "true")
	wantError(t, err, nil, defaultFile+": must be a regular file")
	if took := time.Since(began); took > harness.Slow(5*time.Second) {
		t.Errorf("create failed after %v, want at once", took)
	}
}
