// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/internal/testx"
)

// env is a bundle tree and socket directory for one test, with the daemons that its starts leave.
type env struct {
	t       *testing.T
	dir     string // short: socket paths are limited
	reports string
	vars    []string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sh")
	testx.Must(t, err)
	w := &env{t: t, dir: dir, reports: filepath.Join(dir, "r")}
	t.Cleanup(func() {
		w.endDaemons()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	w.mkdir("r")
	// Daemons outlive their start; adopted by us, they can be waited for.
	testx.Must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	return w
}

func (w *env) mkdir(name string) string {
	w.t.Helper()
	p := filepath.Join(w.dir, name)
	testx.Must(w.t, os.MkdirAll(p, 0o700))
	return p
}

// bundle makes a bundle with a log fifo, and a config.json when group is not "".
func (w *env) bundle(id, group string) string {
	w.t.Helper()
	b := w.mkdir(id)
	testx.Must(w.t, unix.Mkfifo(filepath.Join(b, "log"), 0o700))
	if group != "" {
		spec := fmt.Sprintf(`{"ociVersion":"1.2.0","annotations":{"io.kubernetes.cri.sandbox-id":%q}}`, group)
		testx.Must(w.t, os.WriteFile(filepath.Join(b, "config.json"), []byte(spec), 0o600))
	}
	return b
}

// params is what containerd 2.3 and later send for id, with a socket directory of the test's own. change may be nil.
func (w *env) params(id string, change ...func(*bootstrap.BootstrapParams)) []byte {
	w.t.Helper()
	dir := filepath.Join(w.dir, "s")
	p := &bootstrap.BootstrapParams{
		InstanceID: id, Namespace: "ns1", LogLevel: bootstrap.LogLevel_LOG_LEVEL_DEBUG, ContainerdVersion: "2.4.2",
		ContainerdGrpcAddress: "/p.sock", ContainerdTtrpcAddress: "/p.ttrpc", SocketDir: &dir,
	}
	for _, c := range change {
		c(p)
	}
	data, err := proto.Marshal(p)
	testx.Must(w.t, err)
	return data
}

// result is what a run of the shim's binary gave.
type result struct {
	code           int
	stdout, stderr string
}

// command is the binary in bundle as containerd calls it, without outputs.
func (w *env) command(bundle string, stdin []byte, args ...string) *exec.Cmd {
	all := append([]string{"-namespace", "ns1", "-address", "/c.sock", "-publish-binary", "/c", "-id", filepath.Base(bundle)}, args...)
	cmd := exec.CommandContext(w.t.Context(), os.Args[0], all...)
	cmd.Dir, cmd.Stdin = bundle, bytes.NewReader(stdin)
	// A program with the race detector sleeps a second before it exits, unless told not to.
	cmd.Env = append(os.Environ(), asShimEnv+"=1", reportEnv+"="+w.reports, "GORACE=atexit_sleep_ms=0")
	cmd.Env = append(cmd.Env, w.vars...)
	cmd.WaitDelay = time.Minute // a daemon that kept our pipes would show as an error, not as a hang
	return cmd
}

// shim runs the binary and returns when it has ended, and the daemon that it left, if any, serves.
func (w *env) shim(bundle string, stdin []byte, args ...string) result {
	w.t.Helper()
	cmd := w.command(bundle, stdin, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		w.t.Errorf("run %q: %v", cmd.Args, err)
		return result{code: -1}
	}
	w.awaitReports()
	return result{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

// awaitReports waits until each daemon that we adopted has written its report. start does not wait for that.
func (w *env) awaitReports() {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
		testx.Must(w.t, err)
		var without []string
		for _, name := range children {
			text, err := os.ReadFile(name)
			if err != nil {
				continue // a thread that ended
			}
			for pid := range strings.FieldsSeq(string(text)) {
				if _, err := os.Stat(filepath.Join(w.reports, pid)); err != nil {
					without = append(without, pid)
				}
			}
		}
		if len(without) == 0 {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("daemons without a report: %q", without)
		}
	}
}

// daemons are the reports of all daemons that came to serve.
func (w *env) daemons() []report {
	w.t.Helper()
	entries, err := os.ReadDir(w.reports)
	testx.Must(w.t, err)
	var all []report
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(w.reports, e.Name()))
		testx.Must(w.t, err)
		var r report
		if err := json.Unmarshal(data, &r); err != nil {
			w.t.Fatalf("report %q: %v", data, err)
		}
		all = append(all, r)
	}
	return all
}

// end asks the daemon to end and waits until it has.
func (w *env) end(r report) {
	w.t.Helper()
	if err := unix.Kill(r.Pid, unix.SIGTERM); err != nil {
		w.t.Errorf("end daemon: %v", err)
	}
	w.wait(r)
}

// wait collects the daemon and forgets it. A daemon that does not end is the test's time-out.
func (w *env) wait(r report) unix.WaitStatus {
	w.t.Helper()
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(r.Pid, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			w.t.Errorf("wait for daemon %d: %v", r.Pid, err)
		}
		break
	}
	if err := os.Remove(filepath.Join(w.reports, strconv.Itoa(r.Pid))); err != nil {
		w.t.Error(err)
	}
	return status
}

func (w *env) endDaemons() {
	for _, r := range w.daemons() {
		if err := unix.Kill(r.Pid, unix.SIGKILL); err == nil {
			w.wait(r)
		}
	}
}

// sockets lists the socket directory.
func (w *env) sockets() []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, "s"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
