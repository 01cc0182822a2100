// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/ociruntime/criu"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// fakeCriu puts a program of that name first in PATH.
func fakeCriu(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, criu.Program)
	testx.Must(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o755)) //nolint:gosec // a program is executable
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestCreate_RefusesWhatIsNoCheckpoint(t *testing.T) {
	fakeCriu(t)
	c := newConfig(t, "true")
	c.Checkpoint = t.TempDir()
	_, err := testRuntime.Create(t.Context(), c, nil)
	testx.WantInvalid(t, err, c.Checkpoint, "inventory.img")
	wantNothingLeft(t, c)
}

// A criu that fails stands for one that the kernel is too new for.
func TestRestore_FailureLeavesNothing(t *testing.T) {
	fakeCriu(t)
	c := image(t)
	r, streams := begun(t, c)
	if _, err := r.Restore(t.Context(), streams); err == nil {
		t.Error("Restore with a criu that fails = nil, want an error")
	}
	testx.Must(t, r.Destroy())
	if left, _ := filepath.Glob(filepath.Join(c.Bundle, "criu-*")); len(left) > 0 { // the pattern is well formed
		t.Errorf("left in the bundle: %v", left)
	}
}

// The context ends when the restore is as good as done, and libcontainer has no reason to give up. The race detector
// sees in every other round what is shared with the kill of the members meanwhile.
func TestRestore_IsUndoneWhenItsContextEndedMeanwhile(t *testing.T) {
	for range 3 {
		t.Run("", func(t *testing.T) {
			wantNoLeaks(t)
			restored, let := restoringCriu(t)
			r, streams := begun(t, image(t))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := r.Restore(ctx, streams)
				done <- err
			}()
			testx.Eventually(t, "a restored process, or an early error", func() bool { return testx.Exists(restored) || len(done) > 0 })
			cancel()
			let()
			testx.WantError(t, <-done, context.Canceled)
		})
	}
}

// libcontainer mounts the root file system, with the volumes in it, in the state directory while criu restores. A shim
// that is killed meanwhile leaves the mount there, and the removal of the directory must not remove the files.
func TestRemove_AfterTheShimDiedInARestoreLeavesTheFiles(t *testing.T) {
	for name, halfMade := range map[string]bool{"with a state": false, "killed before the state was written": true} {
		t.Run(name, func(t *testing.T) {
			restored, let := restoringCriu(t)
			c := image(t)
			kept := filepath.Join(c.Rootfs, "tmp", "kept")
			testx.Write(t, kept, "")
			killedShim(t, life{Config: c, Stage: "restored"}, restored)
			let()
			state := filepath.Join(c.Root, c.ID)
			if !testx.Exists(filepath.Join(state, "criu-root", "tmp", "kept")) {
				t.Fatal("nothing is mounted in the state directory, so the test proves nothing")
			}
			if halfMade {
				lc, err := libcontainer.Load(c.Root, c.ID)
				testx.Must(t, err)
				init, err := lc.State()
				testx.Must(t, err)
				testx.Must(t, unix.Kill(init.InitProcessPid, unix.SIGKILL)) // in a cgroup where Remove does not look
				testx.Must(t, os.Remove(filepath.Join(state, "state.json")))
			}
			testx.Must(t, Remove(bounded(t), c))
			if !testx.Exists(kept) {
				t.Error("a file of the root file system is gone")
			}
			wantNothingLeft(t, c)
		})
	}
}

// needCriu skips a test where there is no criu that works with the kernel:
// Debian 12's 3.17 does not with Linux 6.18.
func needCriu(t *testing.T) {
	t.Helper()
	if out, err := exec.Command(criu.Program, "check").CombinedOutput(); err != nil {
		lacking(t, "criu", fmt.Sprintf("a criu that works with this kernel: %v\n%s", err, out))
	}
	if _, err := exec.LookPath("iptables-restore"); err != nil {
		lacking(t, "criu", "iptables-restore, which criu calls: "+err.Error())
	}
}

// counter says a number whenever it is sent SIGUSR1, and ends with it at SIGTERM.
var counter = []string{"sh", "-c", `n=5; trap 'n=$((n+1)); echo $n' USR1; trap 'exit $n' TERM; echo up; while :; do sleep 0.05; done`}

// restore makes a container of image and has it run.
func restore(t *testing.T, image string, args ...string) *box {
	t.Helper()
	config := newConfig(t, args...)
	config.Checkpoint = image
	r, streams := begun(t, config)
	init, err := r.Restore(t.Context(), streams)
	testx.Must(t, err)
	if got := r.Launch().Init; got != inspect.ByCRIU {
		t.Errorf("a restored init is by %s", got)
	}
	b := &box{RuntimeContainer: restored{r, init}, t: t, config: config, streams: streams, dead: make(chan struct{})}
	go func() { defer close(b.dead); b.exit = init.Wait() }()
	t.Cleanup(func() {
		_ = init.Signal(syscall.SIGKILL) // dead already is as good
		b.wait()
	})
	return b
}

// restored is a container whose init Restore has returned.
type restored struct {
	process.RuntimeContainer
	init process.Handle
}

func (r restored) Init() process.Handle { return r.init }

func (b *box) says(what string) {
	b.t.Helper()
	path := strings.TrimPrefix(b.config.IO.Stdout, "file://")
	testx.Eventually(b.t, "the output "+what, func() bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.HasSuffix(string(text), what+"\n")
	})
}

func TestCheckpoint_AndRestore(t *testing.T) {
	needCriu(t)
	wantNoLeaks(t)
	b := create(t, newConfig(t, counter...)).start()
	b.says("up")
	testx.Must(t, b.Init().Signal(syscall.SIGUSR1))
	b.says("6")
	image := filepath.Join(t.TempDir(), "image")
	testx.Must(t, b.Checkpoint(process.CheckpointRequest{Path: image, Exit: true}))
	if exit := b.wait(); exit.Status != 137 {
		t.Errorf("status after a checkpoint that ends the container = %d, want 137", exit.Status)
	}

	// Twice, the second time from a checkpoint of what was restored.
	for _, n := range []string{"7", "8"} {
		r := restore(t, image, "true")
		testx.Must(t, r.Init().Signal(syscall.SIGUSR1))
		r.says(n)
		if got, want := r.exec(t.Context(), command("sh", "-c", "kill -0 1 && echo in; exit 3")), (result{status: 3, out: "in\n"}); got != want {
			t.Errorf("exec in what was restored = %+v, want %+v", got, want)
		}
		image = filepath.Join(t.TempDir(), "image")
		testx.Must(t, r.Checkpoint(process.CheckpointRequest{Path: image}))
		testx.Must(t, r.Init().Signal(syscall.SIGTERM))
		if exit := r.wait(); exit.Status != int(n[0]-'0') {
			t.Errorf("status of what was restored = %d, want %s, from its memory", exit.Status, n)
		}
	}
}

func TestCheckpoint_FailureLeavesTheContainerRunning(t *testing.T) {
	needCriu(t)
	b := create(t, newConfig(t, counter...)).start()
	b.says("up")
	image := filepath.Join(t.TempDir(), "image")
	testx.WantText(t, b.Checkpoint(process.CheckpointRequest{Path: filepath.Join(image, "too", "deep")}), "no such file")
	testx.Must(t, b.Init().Signal(syscall.SIGUSR1))
	b.says("6")
	if testx.Exists(image) {
		t.Errorf("%s is left of a checkpoint that failed", image)
	}
}

// criuEnv makes this binary a criu, and is the directory that its test shares
// with it.
const criuEnv = "ENGINE_TEST_CRIU"

// restoringCriu puts a criu first in PATH that restores any image as a program
// that sleeps, out of reach of who kills the members of the cgroup. Then it says
// that it is done once let is called. restored is there when the program is.
func restoringCriu(t *testing.T) (restored string, let func()) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	testx.Must(t, err)
	script := fmt.Sprintf("#!/bin/sh\nexport %s=%s GORACE=atexit_sleep_ms=0\nexec %s \"$@\"\n", criuEnv, dir, self)
	testx.Must(t, os.WriteFile(filepath.Join(dir, criu.Program), []byte(script), 0o755)) //nolint:gosec // a program is executable
	testx.Must(t, unix.Mkfifo(filepath.Join(dir, "let"), 0o600))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return filepath.Join(dir, "restored"), func() {
		f, err := os.OpenFile(filepath.Join(dir, "let"), os.O_RDWR, 0) // does not wait for a reader
		testx.Must(t, err)
		t.Cleanup(func() { testx.Must(t, f.Close()) })
	}
}

// image is a configuration of a container that is restored from an image with
// what is looked at before criu is.
func image(t *testing.T) process.Config {
	t.Helper()
	c := newConfig(t, "true")
	c.Checkpoint = t.TempDir()
	for name, content := range map[string]string{"inventory.img": "", "descriptors.json": `["","",""]`} {
		testx.Must(t, os.WriteFile(filepath.Join(c.Checkpoint, name), []byte(content), 0o600))
	}
	return c
}

// Types of requests, and of the answers to them (criu's images/rpc.proto).
const (
	criuRestore = 2
	criuNotify  = 6
	criuVersion = 10
)

// serveCriu is `criu swrk FD`: it answers requests over a socket.
func serveCriu(dir string) error {
	fd, err := strconv.Atoi(os.Args[len(os.Args)-1])
	if err != nil {
		return err
	}
	socket := os.NewFile(uintptr(fd), "criu")
	request := make([]byte, 1<<16)
	for {
		n, err := socket.Read(request)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil || n < 2 {
			return fmt.Errorf("request of %d bytes: %w", n, err)
		}
		switch request[1] { // the first field is the type
		case criuVersion:
			_, err = socket.Write(answer(criuVersion, 0x52, 4, 0x08, 3, 0x10, 20)) // version: major 3, minor 20
		case criuRestore:
			err = restoreSleeper(dir, socket)
		}
		if err != nil {
			return err
		}
	}
}

// answer is a criu_resp that tells success.
func answer(kind byte, fields ...byte) []byte { return append([]byte{0x08, kind, 0x10, 1}, fields...) }

func restoreSleeper(dir string, socket *os.File) error {
	roots := []string{"/sys/fs/cgroup/cgroup.procs"} // of v2
	if _, err := os.Stat(roots[0]); err != nil {
		roots, _ = filepath.Glob("/sys/fs/cgroup/*/cgroup.procs") // of each hierarchy; the pattern is well formed
	}
	for _, root := range roots {
		if err := os.WriteFile(root, []byte("0"), 0); err != nil {
			return err
		}
	}
	sleeper := exec.Command("/bin/busybox", "sleep", "1000") // adopted by the test when this process has ended
	sleeper.Stdin, sleeper.Stdout, sleeper.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := sleeper.Start(); err != nil {
		return err
	}
	const script = "post-restore"
	notify := binary.AppendUvarint(append([]byte{0x0a, byte(len(script))}, script+"\x10"...), uint64(sleeper.Process.Pid))
	if _, err := socket.Write(answer(criuNotify, append([]byte{0x2a, byte(len(notify))}, notify...)...)); err != nil {
		return err
	}
	if _, err := socket.Read(make([]byte, 64)); err != nil { // that it was heard
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "restored"), nil, 0o600); err != nil {
		return err
	}
	let, err := os.Open(filepath.Join(dir, "let"))
	if err != nil {
		return err
	}
	if err := let.Close(); err != nil {
		return err
	}
	_, err = socket.Write(answer(criuRestore))
	return err
}

// hostileForCriu are links in a root file system that exchange what CRIU binds at /data (CVE-2026-119101,
// CVE-2026-115520): a directory, and where the link leads.
var hostileForCriu = []struct{ name, dir, target, want string }{
	{"a place that ends in the middle", "a]:/etc", "a]:/etc", "a]:/etc"},
	{"a part of the way that ends in the middle", "]:", "/]:/new", "]:/new"},
	{"the place of another mount", "secret", "secret", "/secret"},
}

// exchange makes the directory and the link of a row of hostileForCriu.
func exchange(t *testing.T, c process.Config, dir, target string) {
	t.Helper()
	testx.Must(t, os.MkdirAll(filepath.Join(c.Rootfs, dir), 0o755))
	linked(t, target, "data")(&c)
}

func bindBoth(t *testing.T, c *process.Config) {
	t.Helper()
	for _, destination := range []string{"/secret", "/data"} {
		mount(specs.Mount{Destination: destination, Type: "bind", Source: t.TempDir(), Options: []string{"bind"}})(c)
	}
}

func TestRestore_RefusesLinksThatExchangeMounts(t *testing.T) {
	for _, h := range hostileForCriu {
		t.Run(h.name, func(t *testing.T) {
			fakeCriu(t) // whose error would be another
			c := image(t)
			exchange(t, c, h.dir, h.target)
			bindBoth(t, &c)
			r, streams := begun(t, c)
			_, err := r.Restore(t.Context(), streams)
			testx.WantError(t, err, errdefs.ErrFailedPrecondition, `"/data"`, h.want)
		})
	}
}

func TestCheckpoint_RefusesLinksThatExchangeMounts(t *testing.T) {
	for _, h := range hostileForCriu {
		t.Run(h.name, func(t *testing.T) {
			fakeCriu(t)
			c := newConfig(t, "sleep", "1000")
			places := []string{filepath.Join(c.Rootfs, "secret"), filepath.Join(c.Rootfs, "data")}
			for _, place := range places {
				testx.Must(t, os.MkdirAll(place, 0o755))
			}
			bindBoth(t, &c)
			b := create(t, c).start()
			for _, place := range places { // the container exchanges them
				testx.Must(t, os.Remove(place))
			}
			exchange(t, c, h.dir, h.target)
			err := b.Checkpoint(process.CheckpointRequest{Path: filepath.Join(t.TempDir(), "image")})
			testx.WantError(t, err, errdefs.ErrFailedPrecondition, `"/data"`, h.want)
		})
	}
}

// begun is a container of an image, before the restore.
func begun(t *testing.T, c process.Config) (process.RuntimeContainer, *stdio.Streams) {
	t.Helper()
	t.Cleanup(func() { wantNothingLeft(t, c) })
	r, err := testRuntime.Create(t.Context(), c, nil)
	testx.Must(t, err)
	t.Cleanup(func() { testx.Must(t, r.Destroy()) }) // a second time too
	streams, err := stdio.Open(t.Context(), c.IO, c.IOOwner)
	testx.Must(t, err)
	t.Cleanup(func() { testx.Must(t, streams.Close()) })
	return r, streams
}
