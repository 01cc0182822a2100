// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

// nerdctl is a containerd that restarts containers, with a nerdctl whose directories are its own.
type nerdctl struct {
	*harness.Containerd
	binary, version string
	dir, bin        string
	ready           []string // what is there when there is no container
}

const (
	nerdctlNamespace = harness.NamespacePrefix + "nerdctl"
	nerdctlScript    = `#!/bin/sh
case $1 in
kill) # prints an id
	exec "$NERDCTL" "$@" >/dev/null
	;;
run | create)
	command=$1
	shift
	set -- "$command" --runtime "$TYPE" "$@"
	;;
esac
exec "$NERDCTL" "$@"
`
	// composeScript has the project of the standard input in $W.
	composeScript = `#!/bin/sh
exec nerdctl compose --project-name project --file $W/compose.yaml "$@"
`
	nerdctlProcessesScript = `#!/bin/sh
nerdctl top "$1" -o pid,args | tail -n +2 | tr -s ' ' | sed 's/^ //' | cut -d ' ' -f 2-
`
)

func newNerdctl(t *testing.T) *nerdctl {
	t.Helper()
	binary, version, err := tools.BuildNerdctl(t.Context())
	harness.Must(t, err)
	c, err := harness.NewContainerd(shared.Env)
	harness.Must(t, err)
	n := &nerdctl{Containerd: c, binary: binary, version: version, dir: filepath.Join(c.Dir, "nerdctl")}
	n.bin = filepath.Join(n.dir, "bin")
	harness.AtEnd(t, func() error { return errors.Join(n.remove(), c.Close()) })
	run := filepath.Join(n.dir, "run") // in place of /run/nerdctl, which is not for the user to choose
	err = errors.Join(os.Chmod(c.Dir, 0o711), os.MkdirAll(run, 0o755), os.MkdirAll(n.bin, 0o755),
		writeScripts(n.bin, map[string]string{
			"nerdctl": nerdctlScript, "compose": composeScript, "processes": nerdctlProcessesScript,
		}), os.MkdirAll("/run/nerdctl", 0o755), harness.Mount(run, "/run/nerdctl", "", unix.MS_BIND))
	harness.Must(t, err)
	harness.AtEnd(t, func() error { return unix.Unmount("/run/nerdctl", unix.MNT_DETACH) })
	if err := n.start(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, n.logs())
	}
	n.ready = n.leaks()
	return n
}

// start starts containerd, with the monitor that restarts containers, and has nerdctl make its network.
func (n *nerdctl) start(ctx context.Context) error {
	const monitor = `"io.containerd.monitor.container.v1.restart"`
	file := filepath.Join(n.Dir, "config.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text = bytes.Replace(text, []byte(", "+monitor), nil, 1)
	text = append(text, "[plugins."+monitor+"]\n  interval = \"200ms\"\n"...)
	err = errors.Join(os.WriteFile(file, text, 0o600), n.Containerd.Start(ctx))
	if err != nil {
		return err
	}
	cl, err := n.Client()
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }() // it has done what it was for
	_, snapshotter, err := n.Load(namespaces.WithNamespace(ctx, nerdctlNamespace), cl)
	if err != nil {
		return err
	}
	settings := fmt.Sprintf(`address = %q
namespace = %q
snapshotter = %q
cni_path = "/usr/lib/cni"
cni_netconfpath = %q
data_root = %q
cgroup_manager = "cgroupfs"
`, n.Address, nerdctlNamespace, snapshotter, filepath.Join(n.dir, "networks"), filepath.Join(n.dir, "data"))
	if err := os.WriteFile(n.settings(), []byte(settings), 0o600); err != nil {
		return err
	}
	return n.sh(ctx, "nerdctl tag $IMAGE busybox; nerdctl run --rm busybox true; nerdctl volume create first; nerdctl volume rm first")
}

func (n *nerdctl) settings() string { return filepath.Join(n.dir, "nerdctl.toml") }

// sh runs a script as those of cases run, with the runc shim.
func (n *nerdctl) sh(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "sh", "-euc", script)
	cmd.Env = n.environ("runc")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return nil
}

func (n *nerdctl) scope() harness.Scope {
	return harness.Scope{
		Namespace: nerdctlNamespace, MountsIn: n.State,
		Dirs: []string{filepath.Join(n.State, "io.containerd.runtime.v2.task", nerdctlNamespace), n.Sockets},
	}
}

// leaks is everything of containers that there is, with the addresses that they have and nerdctl's files of them.
func (n *nerdctl) leaks() []string {
	leaks := n.scope().Leaks()
	for _, pattern := range []string{
		"/var/lib/cni/networks/*/*.*.*.*", n.dir + "/run/*/*", n.dir + "/data/*/containers/*/*", n.dir + "/data/*/names/*/*",
		n.dir + "/data/*/etchosts/*/*", n.dir + "/data/*/volumes/*/*", n.dir + "/networks/*",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			leaks = append(leaks, err.Error())
		}
		leaks = append(leaks, files...)
	}
	return leaks
}

func (n *nerdctl) kind() string   { return "nerdctl" }
func (n *nerdctl) place() string  { return n.dir }
func (n *nerdctl) left() []string { return beyond(n.ready, n.leaks()) }
func (n *nerdctl) remove() error  { return n.scope().Remove() }
func (n *nerdctl) logs() string   { return n.LogFrom(max(0, n.LogSize()-4000)) }

func (n *nerdctl) versions() string {
	return fmt.Sprintf("nerdctl %s, containerd %s", n.version, n.Version)
}

func (n *nerdctl) environ(runtime string) []string {
	return []string{
		"PATH=" + n.bin + ":" + n.Env.Tools + ":" + os.Getenv("PATH"), "HOME=" + n.dir, "NERDCTL=" + n.binary,
		"NERDCTL_TOML=" + n.settings(), "IMAGE=" + harness.Image, "TINI=" + shared.programs.Init,
		"TYPE=" + map[string]string{"runc": "io.containerd.runc.v2", "sandbox": harness.Ours}[runtime],
	}
}

// inspect puts what nerdctl inspect says of the containers into the account.
func (n *nerdctl) inspect(s *session) {
	ids := strings.Fields(s.Quiet("nerdctl ps --all --format '{{.Names}}'"))
	slices.Sort(ids)
	if len(ids) > 0 {
		s.noteJSON(s.Quiet("nerdctl inspect "+strings.Join(ids, " ")), "IPAddress")
	}
}

func (n *nerdctl) clean(ctx context.Context) error {
	return n.sh(ctx, `list=$(nerdctl ps -aq); [ -z "$list" ] || nerdctl rm -f -v $list
		nerdctl volume prune -f -a; nerdctl network prune -f`)
}
