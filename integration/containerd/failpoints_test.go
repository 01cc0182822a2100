// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"sandbox.internal/shim/integration/harness"
)

// unreached lists the failpoints that a machine may not come to, and what it needs for them.
var unreached = map[string]string{
	"create.cpuset":         "cgroup v2",
	"checkpoint.dump":       "criu",
	"checkpoint-undo.image": "criu",
}

// errorOnly lists the failpoints at which there is only an error, and why.
var errorOnly = map[string]string{
	"cleanup.half-made": "containerd removes the bundle of a create that failed, whatever becomes of the delete command, " +
		"so that no other can find the socket",
}

// socketStays lists the failpoints in a start that dies before containerd is connected. It calls no delete command then,
// and the socket stays until the next start of that id.
var socketStays = []string{"start.daemon", "start.directory", "start.socket"}

// failing is the test of all failpoints.
type failing struct {
	*env
	points    *harness.Failpoints
	bystander *task
	before    []string // what there is besides the container of a case
	pidFiles  string
	cases     int
}

// place is where a failpoint is first reached: in a shim, or in the delete command.
type place struct {
	life      life
	operation string
}

// byDelete reports whether it is in the delete command. That runs after other lives too, and mostly finds an answer
// there before it comes to any failpoint.
func (p place) byDelete() bool { return p.operation == killing }

// A step fails after it was done, the goroutine panics there, or the shim dies. Nothing is left of the container or the
// pod then, nobody else is harmed, and the error names the step.
func TestFailpoints_LeaveNothing(t *testing.T) {
	harness.OursOnly(t, "failpoints")
	programs := shared.Env
	points := harness.NewFailpoints(t, &programs)
	names, err := harness.FailpointNames("../../pkg")
	if err != nil || len(names) == 0 {
		t.Fatalf("failpoints in the source: %v, %v", names, err)
	}
	e := sandboxEnvFor(t, startContainerd(t, programs), harness.Slow(10*time.Minute))
	f := &failing{env: e, points: points, pidFiles: publicDir(t)}
	f.allow("pid-file", "listen", "host-rootfs", "verdict-file")
	f.bystander = f.run("bystander", config{}, "sleep", "1000")
	f.before = f.left()

	places := map[string][]place{}
	for _, one := range allLives() {
		t.Run("none in: "+one.name, func(t *testing.T) { f.learn(t, one, places) })
	}
	for _, name := range names {
		if len(places[name]) == 0 && unreached[name] == "" {
			t.Errorf("no life comes to failpoint %s", name)
		}
		if len(places[name]) == 0 {
			t.Logf("failpoint %s: not reached without %s", name, unreached[name])
		}
		for _, action := range []string{"error", "panic", "kill"} {
			if action != "error" && errorOnly[name] != "" {
				t.Logf("%s/%s: left out: %s", name, action, errorOnly[name])
				continue
			}
			for _, at := range places[name] {
				t.Run(name+"/"+action+" in: "+at.life.name, func(t *testing.T) { f.try(t, name, action, at) })
			}
		}
	}
	f.bystander.kill()
}

// one returns the env of a case, with a context of its own.
func (f *failing) one(t *testing.T) *lives {
	t.Helper()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(t.Context(), f.namespace), testLimit)
	t.Cleanup(cancel)
	e := *f.env
	f.cases++
	e.TB, e.ctx, e.logStart = t, ctx, f.containerd.LogSize()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of containerd and the shims:\n%s", e.containerd.LogFrom(e.logStart))
		}
	})
	return &lives{env: &e, id: fmt.Sprintf("f%d", f.cases), dir: f.pidFiles}
}

// learn runs a life and notes where it comes to which failpoint.
func (f *failing) learn(t *testing.T, one life, places map[string][]place) {
	t.Helper()
	l := f.one(t)
	f.points.Passed()
	seen := map[string]string{}
	note := func(operation string) {
		for _, p := range f.points.Passed() {
			if seen[p.Name] == "" {
				seen[p.Name] = operation
			}
		}
	}
	last := ""
	var err error
	for _, o := range one.begin(l) {
		f.set(one.prior[o.name])
		last = o.name
		if err = o.do(); err != nil {
			break
		}
		note(o.name)
	}
	if err != nil && one.prior == nil {
		t.Errorf("%s: %v", last, err)
	}
	l.settle()
	f.wantNothing(t)
	note(last) // the delete command's too
	for name, operation := range seen {
		at := place{one, operation}
		known := slices.ContainsFunc(places[name], func(p place) bool { return p.byDelete() == at.byDelete() })
		byChance := strings.HasPrefix(name, "cleanup.") && !at.byDelete() && one.prior == nil
		if !known && !byChance && one.prior[operation][name] == "" {
			places[name] = append(places[name], at)
		}
	}
}

func (f *failing) set(points map[string]string) {
	for name, action := range points {
		f.points.Set(name, action)
	}
}

// try runs a life with one failpoint set, up to the operation that fails.
func (f *failing) try(t *testing.T, name, action string, at place) {
	t.Helper()
	l := f.one(t)
	f.points.Passed()
	var err error
	for _, o := range at.life.begin(l) {
		f.set(at.life.prior[o.name])
		if o.name == at.operation {
			f.points.Set(name, action)
		}
		if err = o.do(); err != nil {
			break
		}
	}
	l.settle()
	if action != "error" && slices.Contains(socketStays, name) {
		f.startAgain(l)
	}
	said := fmt.Sprint(err)
	if at.byDelete() {
		said += f.deleteAgain(l)
	}
	f.wantNothing(t)
	if !slices.Contains(f.points.Passed(), harness.Passage{Name: name, Action: action}) {
		t.Errorf("the failpoint was not reached")
		f.points.Reset(name)
	}
	named := func() error { // containerd may write its log later
		if !strings.Contains(said+f.containerd.LogFrom(l.logStart), "failpoint "+name) {
			return fmt.Errorf("neither the error nor the log name %s: %s", name, said)
		}
		return nil
	}
	switch {
	case err != nil && err.Error() == "":
		t.Error("the error is empty")
	case action == "error" && name == "start.directory":
		// The daemon has answered. It says why it ended in a log that containerd may have stopped to read.
	case action == "error":
		if err := harness.Poll(named); err != nil {
			t.Error(err)
		}
	}
	if action != "panic" && strings.Contains(f.containerd.LogFrom(l.logStart), "panic:") {
		t.Error("the shim panics")
	}
	t.Logf("error: %v", err)
	f.wantBystander(t)
}

// startAgain goes through the life of a container with the id of one whose start died. If containerd was connected, its
// delete command runs first.
func (f *failing) startAgain(l *lives) {
	l.Helper()
	bundle := filepath.Join(f.containerd.State, "io.containerd.runtime.v2.task", f.namespace, l.id)
	l.must(harness.Poll(func() error {
		_, err := os.Lstat(bundle)
		if err == nil {
			return fmt.Errorf("bundle of a start that died: %s", bundle)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}), "wait for containerd")
	failed, err := l.client.LoadContainer(l.ctx, l.id)
	l.must(err, "container whose start died")
	l.must(failed.Delete(l.ctx, client.WithSnapshotCleanup), "delete container")
	for _, o := range l.container() {
		l.must(o.do(), o.name+" after a start that died")
	}
	l.settle()
}

// wantNothing fails the test if something of a case stays. That is not held against the next.
func (f *failing) wantNothing(t *testing.T) {
	t.Helper()
	f.before = harness.CheckSince(t, f.before, f.left)
}

// state is that of a process in the name of a leak.
var state = regexp.MustCompile(`^(process \d+) \S+ \(\w+\)`)

// left is what the test has on the machine.
func (f *failing) left() []string {
	all := f.scope().Leaks()
	bundles := filepath.Join(f.containerd.State, "io.containerd.sandbox.controller.v1.shim", f.namespace)
	all = append(all, harness.Scope{Namespace: f.namespace, MountsIn: bundles, Dirs: []string{bundles}}.Leaks()...)
	files, err := os.ReadDir(f.pidFiles)
	f.must(err, "pid files")
	for _, file := range files {
		all = append(all, "pid file "+file.Name())
	}
	for i, leak := range all {
		all[i] = state.ReplaceAllString(leak, "$1")
	}
	return all
}

// wantBystander checks that the container of another shim runs as before, and that its shim works.
func (f *failing) wantBystander(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(t.Context(), f.namespace), testLimit)
	defer cancel()
	status, err := f.bystander.Status(ctx)
	if err != nil || status.Status != client.Running || !harness.Alive(int(f.bystander.Pid())) {
		t.Fatalf("the container of another shim: %v, %v, want running", status, err)
	}
}

// deleteAgain runs the delete command for what one that failed has left, as containerd does when it is started again.
// It may be faster than that, and be the one that fails. It returns why it failed.
func (f *failing) deleteAgain(l *lives) (said string) {
	l.Helper()
	for _, kind := range []string{"io.containerd.runtime.v2.task", "io.containerd.sandbox.controller.v1.shim"} {
		bundles, err := filepath.Glob(filepath.Join(f.containerd.State, kind, f.namespace, l.id+"*"))
		l.must(err, "bundles")
		for _, bundle := range bundles {
			id := filepath.Base(bundle)
			l.must(harness.Poll(func() error { // the first may run still
				out, err := f.deleteCommand(l.ctx, id, bundle)
				said += out
				return err
			}), "delete command")
			l.must(os.RemoveAll(bundle), "remove bundle")
			l.must(os.RemoveAll(filepath.Join(f.containerd.Dir, "root", kind, f.namespace, id)), "remove bundle")
		}
	}
	return said
}

// deleteCommand runs the delete command, unless the bundle has gone.
func (f *failing) deleteCommand(ctx context.Context, id, bundle string) (said string, err error) {
	cmd := exec.CommandContext(ctx, f.containerd.Env.Shim, "-namespace", f.namespace,
		"-address", f.containerd.Address, "-id", id, "-bundle", bundle, "delete")
	cmd.Dir = bundle
	cmd.Env = append(os.Environ(), f.containerd.Env.Vars...)
	out, err := cmd.CombinedOutput()
	if _, gone := os.Lstat(bundle); err != nil && errors.Is(gone, fs.ErrNotExist) {
		return string(out), nil
	}
	if err != nil {
		return string(out), fmt.Errorf("%w: %s", err, out)
	}
	return "", nil
}
