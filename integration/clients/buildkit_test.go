// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
	"sandbox.internal/shim/integration/tools"
)

// buildkit is a buildkitd for each runtime, which has RUN steps run by the containerd of Docker.
type buildkit struct {
	programs tools.BuildKit
	dir, bin string
	builders map[string]*builder
	ready    []string // what is there when nothing is built
}

// builder is one of them.
type builder struct {
	namespace string // of containerd
	dir       string
	cmd       *exec.Cmd
	exited    <-chan struct{}
}

// buildScript builds from a Dockerfile, its input, that follows the root file system of the test image. Afterwards
// $W/out has what RUN steps left in /out, those of the stage LAST, and $W/said what they said.
const buildScript = `#!/bin/sh
{ printf 'FROM scratch AS base\nADD rootfs.tar /\n'; cat; printf '\nFROM scratch\nCOPY --from=%s /out /\n' ${LAST:-base}; } >$W/Dockerfile
"$BUILDCTL" build --progress plain --no-cache --frontend dockerfile.v0 --local context="$CONTEXT" --local dockerfile=$W \
	--output type=local,dest=$W/out "$@" 2>$W/log
status=$?
sed -n -E 's/^#[0-9]+ [0-9]+\.[0-9]+ //p' $W/log >$W/said
[ $status = 0 ] || grep -o 'exit code: [0-9]*' $W/log | head -n 1
exit $status
`

// newBuildkit starts both.
func newBuildkit(t *testing.T) *buildkit {
	t.Helper()
	programs, err := tools.BuildBuildKit(t.Context())
	harness.Must(t, err)
	b := &buildkit{programs: programs, dir: filepath.Join(shared.Dir, "buildkit"), builders: map[string]*builder{}}
	b.bin = filepath.Join(b.dir, "bin")
	err = errors.Join(os.MkdirAll(b.bin, 0o755), os.Chmod(b.dir, 0o711), writeScripts(b.bin, map[string]string{"build": buildScript}))
	if err == nil {
		err = b.makeContext(t.Context())
	}
	harness.Must(t, err)
	harness.AtEnd(t, b.close)
	for runtime, name := range map[string]string{"runc": "io.containerd.runc.v2", "sandbox": harness.Ours} {
		if err := b.start(t.Context(), runtime, name); err != nil {
			t.Fatalf("buildkitd: %v\n%s", err, b.logs())
		}
	}
	b.ready = b.leaks()
	return b
}

// makeContext writes the directory that builds are from.
func (b *buildkit) makeContext(ctx context.Context) error {
	id, err := shared.docker(ctx, nil, "create", "busybox")
	if err != nil {
		return err
	}
	id = strings.TrimSpace(id)
	text, err := shared.docker(ctx, nil, "export", id)
	_, e := shared.docker(ctx, nil, "rm", id)
	dir := filepath.Join(b.dir, "context")
	return errors.Join(err, e, os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "rootfs.tar"), []byte(text), 0o600))
}

// start starts the buildkitd of a runtime and returns when it answers.
func (b *buildkit) start(ctx context.Context, runtime, name string) error {
	k := &builder{namespace: harness.NamespacePrefix + "build-" + runtime, dir: filepath.Join(b.dir, runtime)}
	documented, err := section.Block(page, "toml", "[worker.containerd]")
	if err != nil {
		return err
	}
	const worker = "[worker.containerd]\n"
	config := fmt.Sprintf(`root = %q
insecure-entitlements = ["security.insecure", "network.host"]
[grpc]
  address = [%q]
`, filepath.Join(k.dir, "root"), k.host()) + strings.NewReplacer(worker, worker+fmt.Sprintf(`  address = %q
  namespace = %q
  networkMode = "host"
  defaultCgroupParent = %q
`, shared.Address, k.namespace, "/"+k.namespace), strconv.Quote(harness.Ours), strconv.Quote(name)).Replace(documented)
	file := filepath.Join(k.dir, "buildkitd.toml")
	// BuildKit puts all steps into the cgroup buildkit, which runc makes for the first of them and leaves there.
	err = errors.Join(os.Mkdir(k.dir, 0o711), os.WriteFile(file, []byte(config), 0o600),
		cri.MakeCgroup("/"+k.namespace), cri.MakeCgroup("/"+k.namespace+"/buildkit"))
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(k.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // buildkitd has it
	k.cmd = exec.Command(b.programs.Daemon, "--config", file)
	k.cmd.Env = []string{"PATH=" + shared.Env.Path(), "HOME=" + k.dir, "TMPDIR=" + k.dir}
	k.cmd.Dir, k.cmd.Stdout, k.cmd.Stderr = k.dir, log, log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if k.exited, err = harness.Spawn(k.cmd); err != nil {
		return err
	}
	b.builders[runtime] = k
	return harness.Poll(func() error {
		ctx, cancel := context.WithTimeout(ctx, harness.Slow(10*time.Second))
		defer cancel()
		cmd := exec.CommandContext(ctx, b.programs.CLI, "--addr", k.host(), "debug", "workers")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("buildctl: %w\n%s", err, out)
		}
		return nil
	})
}

func (k *builder) host() string { return "unix://" + filepath.Join(k.dir, "sock") }

func (k *builder) scope() harness.Scope {
	return harness.Scope{
		Namespace: k.namespace, MountsIn: filepath.Join(k.dir, "root"),
		Dirs: []string{filepath.Join(shared.State, "io.containerd.runtime.v2.task", k.namespace), shared.Sockets},
	}
}

func (b *buildkit) leaks() (leaks []string) {
	for _, k := range b.builders {
		leaks = append(leaks, k.scope().Leaks()...)
	}
	return leaks
}

func (b *buildkit) kind() string                { return "buildkit" }
func (b *buildkit) place() string               { return b.dir }
func (b *buildkit) inspect(*session)            {}
func (b *buildkit) clean(context.Context) error { return nil } // builds clean up themselves
func (b *buildkit) left() []string              { return beyond(b.ready, b.leaks()) }

func (b *buildkit) versions() string {
	return fmt.Sprintf("buildkitd %s, containerd %s", b.programs.Version, shared.Version)
}

func (b *buildkit) remove() (err error) {
	for _, k := range b.builders {
		err = errors.Join(err, k.scope().Remove())
	}
	return err
}

func (b *buildkit) environ(runtime string) []string {
	return []string{
		"PATH=" + b.bin + ":" + os.Getenv("PATH"), "HOME=" + b.dir, "BUILDKIT_HOST=" + b.builders[runtime].host(),
		"BUILDCTL=" + b.programs.CLI, "CONTEXT=" + filepath.Join(b.dir, "context"),
	}
}

func (b *buildkit) logs() (text string) {
	for _, k := range b.builders {
		log, err := os.ReadFile(filepath.Join(k.dir, "log"))
		if err != nil {
			return err.Error()
		}
		text += string(log[max(0, len(log)-3000):])
	}
	return text + shared.logs()
}

func (b *buildkit) close() (err error) {
	for runtime, k := range b.builders {
		err = errors.Join(err, k.cmd.Process.Signal(syscall.SIGTERM))
		select {
		case <-k.exited:
		case <-time.After(harness.Slow(time.Minute)):
			err = errors.Join(err, fmt.Errorf("buildkitd of %s does not end", runtime), k.cmd.Process.Kill())
		}
	}
	return errors.Join(err, b.remove(), os.RemoveAll(b.dir))
}
