// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

// sweepLimit is how many calls of one kind are made to fail in an operation; more are the same in a loop.
const sweepLimit = 200

// sweepPatience is how long an operation may take. The shim bounds most of what it waits for by more.
const sweepPatience = 15 * time.Second

// chosen are those of all that the variable lists, or else the short list; "all" is all.
func chosen(t *testing.T, variable string, all, short []string) []string {
	t.Helper()
	text := os.Getenv(variable)
	switch text {
	case "":
		return short
	case "all":
		return all
	}
	list := strings.Split(text, ",")
	for _, one := range list {
		if !slices.Contains(all, one) {
			t.Fatalf("%s=%s: %q is none of %v", variable, text, one, all)
		}
	}
	return list
}

// In each operation the first system call of a kind fails, then the second, and so on: after each nothing is left,
// nobody else is harmed, the shim lives, and the error says what failed. strace counts the calls of each thread by
// themselves. SHIM_SWEEP_OPS, SHIM_SWEEP_CALLS and SHIM_SWEEP_ERRORS choose; make sweep runs all. Calls of different
// kinds are made to fail at the same time, in containerds of their own, as many as -parallel says.
func TestSweep(t *testing.T) {
	harness.OursOnly(t, "what is left after a system call fails")
	var names []string
	for _, o := range sweepOps() {
		names = append(names, o.name)
	}
	ops := chosen(t, "SHIM_SWEEP_OPS", names, []string{"create", "exec", "kill", "delete", opUpgrade})
	errs := chosen(t, "SHIM_SWEEP_ERRORS", sweepErrors, []string{"ENOMEM"})
	calls := chosen(t, "SHIM_SWEEP_CALLS", sweepCalls,
		[]string{"mkdirat", "pipe2", "memfd_create", "socketpair", "mount", "unlinkat", "write", "ppoll", "clone"})
	for _, o := range sweepOps() {
		if !slices.Contains(ops, o.name) {
			continue
		}
		for _, e := range errs {
			t.Run(o.name+"/"+e, func(t *testing.T) {
				for _, c := range calls {
					// Create writes much.
					if c != "write" || o.name != "create" || len(calls) == len(sweepCalls) {
						t.Run(c, func(t *testing.T) {
							t.Parallel()
							sweepCall(t, o, c, e)
						})
					}
				}
			})
			fmt.Fprintf(os.Stderr, "sweep: %s: %s %s\n", time.Now().UTC().Format(time.TimeOnly), o.name, e)
		}
	}
}

// sweepCall makes the calls of one kind fail, one after the other.
func sweepCall(t *testing.T, o sweepOp, call, errno string) {
	t.Helper()
	w := newWorld(t, o.name)
	changes := regexp.MustCompile(`^(process \d+) \S+ \(\w+\)|( take-over)?"$`) // its state, and the action of an upgrade
	left := func() []string {
		all := w.Scope().Leaks()
		for i, leak := range all {
			all[i] = changes.ReplaceAllString(leak, "$1")
		}
		return all
	}
	before := left()
	for n := 1; ; n++ {
		if n > sweepLimit {
			t.Logf("ended after %d", sweepLimit)
			break
		}
		fault := harness.Fault{Call: call, Err: errno, When: fmt.Sprint(n)}
		before = harness.CheckSince(t, before, left)
		switch fail(t, w, o, fault) {
		case hit:
		case missed:
			w.end()
			return
		case useless:
			return
		case dead:
			w = newWorld(t, o.name)
			before = left()
		}
	}
	w.end()
}

// after is what can be done after a run.
type after int

const (
	hit     after = iota // the next call
	missed               // nothing: there was no such call any more
	useless              // nothing: what is there is not as it was
	dead                 // the next call, in a world of its own
)

// fail makes a call of an operation fail.
func fail(t *testing.T, w *world, o sweepOp, fault harness.Fault) after {
	t.Helper()
	w.begin(o)
	faults := harness.Inject(t, fault)
	detach := faults.Into(w.target().Pid)
	began := time.Now()
	err := o.do(w)
	took := time.Since(began)
	detach()
	injected := faults.Injected()
	wrong := func(format string, args ...any) {
		t.Errorf("%s, %v: %s\n\t%s", o.name, fault, fmt.Sprintf(format, args...), strings.Join(injected, "\n\t"))
	}
	if !harness.Alive(w.target().Pid) {
		// The program to which a successor returns makes the same calls, and there is no way back from that.
		again := o.name == opUpgrade && (len(injected) > 1 || slices.ContainsFunc(injected, beforeMain.MatchString))
		if text := w.target().Log(); !again && !harness.GoRuntimeDied(text) {
			wrong("the shim died: %s", text)
		}
		removeDead(w)
		return dead
	}
	if o.name == opUpgrade && err != nil && strings.Contains(err.Error(), unwatched) {
		w.Must(w.finish(), "finish")
		w.end()
		return dead
	}
	switch {
	case took > sweepPatience && slices.ContainsFunc(injected, waitsForEver):
		t.Logf("%v: Go's runtime or package syscall waits for ever", fault)
		w.Must(unix.Kill(w.target().Pid, unix.SIGKILL), "kill the shim that waits")
		removeDead(w)
		return dead
	case took > sweepPatience:
		wrong("hangs: %v", err)
	case err != nil && !lost(err):
		if len(injected) == 0 {
			wrong("fails, though no call did: %v", err)
		} else if !saysWhat(err, w.bundle.ID, fault.Err) {
			wrong("the error does not say what failed: %v", err)
		}
	}
	if text := w.target().Log(); strings.Contains(text, "panic:") {
		wrong("panic: %s", text)
	}
	if o.name == opUpgrade {
		if err := w.outlived(); err != nil {
			wrong("after it: %v", err)
			return useless
		}
	}
	if finishErr := w.finish(); finishErr != nil {
		wrong("%v; the error was %v", finishErr, err)
		return useless
	}
	w.redial(w.shim)
	w.redial(w.other) // which may be the same, shared
	if err := w.bystanders(); err != nil {
		wrong("others are harmed: %v", err)
		return useless
	}
	t.Logf("%v: %v: %v", fault, took.Round(time.Millisecond), err)
	if len(injected) == 0 {
		return missed
	}
	return hit
}

// beforeMain is what Go's runtime calls in a new program before anything of the shim, and dies without: the poller, and
// a look at the standard streams, which does not fail in truth (docs/decisions/0021-upgrade-in-place.md).
var beforeMain = regexp.MustCompile(`epoll_ctl\(.*EPOLL_CTL_ADD.*\[eventfd\]|fcntl\([012]<.*F_GETFD`)

// removeDead removes what a dead shim had, and ends the others.
func removeDead(w *world) {
	dead := []*fakecontainerd.Bundle{w.bundle}
	died := w.target().Answer.Address
	for s, b := range map[*fakecontainerd.Shim]*fakecontainerd.Bundle{w.shim: w.home, w.other: w.stays} {
		if s.Answer.Address == died {
			dead = append(dead, b)
			continue
		}
		w.redial(s)
		endAll(w.Fake, s, b)
	}
	for _, b := range dead {
		_, err := w.DeleteCommand(b)
		w.Must(err, "delete command after the shim died")
		w.Remove(b)
	}
}

// saysWhat reports whether an error has words beside the id, the kernel's and the class.
func saysWhat(err error, id, errno string) bool {
	text := err.Error()
	for _, known := range []string{
		"container", "sandbox", "exec", id, `"x"`, errnos[errno].Error(), "resource exhausted", "internal", "unknown", "unavailable",
		"failed precondition", "invalid argument",
	} {
		text = strings.ReplaceAll(text, known, "")
	}
	return regexp.MustCompile(`[a-z]{3}`).MatchString(text)
}

var errnos = map[string]unix.Errno{
	"ENOMEM": unix.ENOMEM, "EMFILE": unix.EMFILE, "ENFILE": unix.ENFILE, "ENOSPC": unix.ENOSPC, "EIO": unix.EIO,
	"EINTR": unix.EINTR, "EAGAIN": unix.EAGAIN,
}

// world is a shim with a container that nobody touches, another shim with one, and what one run of the sweep makes.
type world struct {
	*fakecontainerd.Fake
	shim, other         *fakecontainerd.Shim
	home, bundle, stays *fakecontainerd.Bundle // home's container and that of the other shim stay; bundle's is of the run
	pod                 *fakecontainerd.Shim   // of the run; nil for none
	runs                int
	installed           *harness.Installed // what the shims are copies of; nil if nothing is upgraded
}

// sweepOp is an operation of which system calls fail.
type sweepOp struct {
	name    string
	prepare func(*world)
	do      func(*world) error
}

// opUpgrade is the operation after which another program may run, and upgradeLimit how long its answer may take.
const (
	opUpgrade    = "upgrade"
	upgradeLimit = 20 * time.Second
)

func sweepOps() []sweepOp {
	create := func(w *world) error {
		_, err := w.shim.Create(w.Ctx, w.bundle.CreateRequest())
		return err
	}
	start := func(w *world) error {
		_, err := w.shim.Start(w.Ctx, &task.StartRequest{ID: w.bundle.ID})
		return err
	}
	kill := func(w *world) error {
		_, err := w.shim.Kill(w.Ctx, &task.KillRequest{ID: w.bundle.ID, Signal: 9, All: true})
		if err == nil {
			_, err = w.shim.Wait(w.Ctx, &task.WaitRequest{ID: w.bundle.ID})
		}
		return err
	}
	created := func(w *world) { w.Must(create(w), "create") }
	running := func(w *world) { created(w); w.Must(start(w), "start") }
	return []sweepOp{
		{"create", func(*world) {}, create},
		{"start", created, start},
		{"exec", running, (*world).exec},
		{"kill", running, kill},
		{"delete", func(w *world) { running(w); w.Must(kill(w), "kill") }, func(w *world) error {
			_, err := w.shim.Delete(w.Ctx, &task.DeleteRequest{ID: w.bundle.ID})
			return err
		}},
		{"pause", running, func(w *world) error {
			_, err := w.shim.Pause(w.Ctx, &task.PauseRequest{ID: w.bundle.ID})
			if err == nil {
				_, err = w.shim.Resume(w.Ctx, &task.ResumeRequest{ID: w.bundle.ID})
			}
			return err
		}},
		{"update", running, (*world).update},
		{"stats", running, func(w *world) error {
			_, err := w.shim.Stats(w.Ctx, &task.StatsRequest{ID: w.bundle.ID})
			return err
		}},
		{"pids", running, func(w *world) error {
			_, err := w.shim.Pids(w.Ctx, &task.PidsRequest{ID: w.bundle.ID})
			return err
		}},
		{opUpgrade, func(w *world) { running(w); w.installed.Release(w) }, (*world).upgrade},
		{"pod", (*world).newPod, func(w *world) error {
			err := w.pod.CreateSandbox(w.bundle, func(c *cri.PodSandboxConfig) {
				c.Hostname = "box"
				c.Linux.CgroupParent = "/" + w.Namespace + "/pod-" + w.bundle.ID
				c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
			})
			if err == nil {
				err = w.pod.Sandbox().Start(w.Ctx, w.bundle.ID)
			}
			return err
		}},
	}
}

// newWorld makes a world for an operation. All that is in it ends with endWorld.
func newWorld(t *testing.T, operation string) *world {
	t.Helper()
	w := &world{}
	env := env
	if operation == opUpgrade {
		env, w.installed = harness.Install(t, env)
	}
	f := fakecontainerd.New(t, env, rootfs)
	w.Fake = f
	w.home = f.Bundle("home", annotate(groupKey, "home"), "sleep", "1000")
	w.stays = f.Bundle("stays", nil, "sleep", "1000")
	w.shim, w.other = f.Shim(w.home), f.Shim(w.stays)
	w.shim.Run(w.home)
	w.other.Run(w.stays)
	return w
}

func (w *world) end() {
	endAll(w.Fake, w.shim, w.home)
	endAll(w.Fake, w.other, w.stays)
}

// begin makes the bundle of a run.
func (w *world) begin(o sweepOp) {
	w.Helper()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), w.Namespace), harness.Slow(time.Minute))
	w.Cleanup(cancel)
	w.Ctx, w.pod = ctx, nil
	w.runs++
	id := fmt.Sprintf("run%d", w.runs)
	if o.name != "pod" {
		w.bundle = w.Bundle(id, annotate(groupKey, "home"), "sleep", "1000")
	}
	o.prepare(w)
}

func (w *world) newPod() {
	w.bundle = w.SandboxBundle(fmt.Sprintf("run%d", w.runs))
	w.pod = w.Shim(w.bundle)
}

// target is the shim of the operation.
func (w *world) target() *fakecontainerd.Shim {
	if w.pod != nil {
		return w.pod
	}
	return w.shim
}

func (w *world) exec() error {
	_, err := w.shim.Exec(w.Ctx, &task.ExecProcessRequest{ID: w.bundle.ID, ExecID: "x", Spec: w.ProcessSpec(nil, "true")})
	if err == nil {
		_, err = w.shim.Start(w.Ctx, &task.StartRequest{ID: w.bundle.ID, ExecID: "x"})
	}
	if err == nil {
		_, err = w.shim.Wait(w.Ctx, &task.WaitRequest{ID: w.bundle.ID, ExecID: "x"})
	}
	if err == nil {
		_, err = w.shim.Delete(w.Ctx, &task.DeleteRequest{ID: w.bundle.ID, ExecID: "x"})
	}
	return err
}

func (w *world) update() error {
	shares, limit := uint64(512), int64(64<<20)
	r, err := typeurl.MarshalAnyToProto(&specs.LinuxResources{
		CPU: &specs.LinuxCPU{Shares: &shares}, Memory: &specs.LinuxMemory{Limit: &limit},
	})
	w.Must(err, "resources")
	_, err = w.shim.Update(w.Ctx, &task.UpdateTaskRequest{ID: w.bundle.ID, Resources: r})
	return err
}

// upgrade has the shim become another release.
func (w *world) upgrade() error {
	ctx, cancel := context.WithTimeout(w.Ctx, harness.Slow(upgradeLimit))
	defer cancel()
	_, _, err := harness.Upgrade(ctx, w.shim.Answer.Address, false)
	return err
}

// unwatched is in the error of an upgrade after a successor that could not make what watches a process. It goes on, and
// becomes no other program as long as the process lives.
const unwatched = "the wait for a process that cannot be watched"

// outlived checks that the container of an upgrade lives, and ends it by a signal: the program that runs now tells its
// exit.
func (w *world) outlived() error {
	w.redial(w.shim)
	state, err := w.shim.State(w.Ctx, &task.StateRequest{ID: w.bundle.ID})
	if err != nil {
		return err
	}
	if err := unix.Kill(int(state.GetPid()), unix.SIGKILL); err != nil {
		return fmt.Errorf("its init, which is %v: %w", state.GetStatus(), err)
	}
	end := fmt.Sprintf("exit %s %d", w.bundle.ID, 128+unix.SIGKILL)
	return w.Events.Wait(w.Ctx, w.bundle.ID, func(text string) bool { return strings.HasSuffix(text, end) })
}

// redial connects to a shim anew: an error of its own may have cost the connection.
func (w *world) redial(s *fakecontainerd.Shim) {
	old := s.Task
	s.Task = w.Dial(s.Answer.Address, "v3")
	_ = old.Close() // it may be closed
}

// finish removes what the run made, and its bundle. Nothing fails any more.
func (w *world) finish() error {
	s := w.target()
	w.redial(s)
	err := harness.Poll(func() error {
		if w.pod != nil {
			if err := s.Sandbox().Shutdown(w.Ctx, w.bundle.ID); err != nil && !errdefs.IsNotFound(err) && !lost(err) {
				return err
			}
			return nil
		}
		_, _ = s.Resume(w.Ctx, &task.ResumeRequest{ID: w.bundle.ID})
		_, _ = s.Kill(w.Ctx, &task.KillRequest{ID: w.bundle.ID, Signal: 9, All: true})
		_, err := s.Delete(w.Ctx, &task.DeleteRequest{ID: w.bundle.ID})
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete after it: %w", err)
	}
	w.Remove(w.bundle)
	return nil
}

// lost reports whether a connection broke: the shim could not read or write there.
func lost(err error) bool {
	// Of the client's own connection: the shim may answer that a child of its own has broken a pipe.
	for _, words := range []string{"ttrpc: closed", "connection reset", "write unix", "EOF"} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}

// bystanders checks that the other containers of the same shim and of another live, and that both shims answer.
func (w *world) bystanders() error {
	var errs []error
	for s, b := range map[*fakecontainerd.Shim]*fakecontainerd.Bundle{w.shim: w.home, w.other: w.stays} {
		state, err := s.State(w.Ctx, &task.StateRequest{ID: b.ID})
		if err == nil && !harness.Alive(int(state.GetPid())) {
			err = errors.New("its init is dead")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", b.ID, err))
		}
	}
	return errors.Join(errs...)
}

const deleteCommand = "delete command"

// The shim dies at the first system call of a kind, at the second, and so on, or the delete command does. The next
// delete command removes everything, and nobody else is harmed. The variables of TestSweep choose.
func TestSweep_KillLeavesNothing(t *testing.T) {
	harness.OursOnly(t, "what is left after a kill")
	all := []string{deleteCommand}
	for _, o := range sweepOps() {
		all = append(all, o.name)
	}
	ops := chosen(t, "SHIM_SWEEP_OPS", all, []string{"create", "delete", "pod", deleteCommand})
	calls := chosen(t, "SHIM_SWEEP_CALLS", sweepCalls, []string{"mkdirat", "mount", "renameat", "unlinkat", "umount2", "clone"})
	killed := map[string]int{} // by each operation
	for _, name := range ops {
		for _, call := range calls {
			hit := true
			for n := 1; hit && n <= sweepLimit; n++ {
				t.Run(fmt.Sprintf("%s/%s/%d", name, call, n), func(t *testing.T) {
					hit = killAt(t, name, harness.Fault{Call: call, Err: harness.Killed, When: fmt.Sprint(n)})
				})
				if hit {
					killed[name]++
				}
			}
			if hit {
				t.Errorf("%s: the call %d of %s still kills", name, sweepLimit, call)
			}
		}
		if killed[name] == 0 {
			t.Errorf("nothing was killed in %s", name)
		}
	}
	t.Logf("kills: %v", killed)
}

// killAt has a call of an operation kill the process that makes it, and reports whether there was such a call.
func killAt(t *testing.T, name string, fault harness.Fault) (hit bool) {
	t.Helper()
	w := newWorld(t, name)
	faults := harness.Inject(t, fault)
	operation := func(name string) sweepOp {
		return sweepOps()[slices.IndexFunc(sweepOps(), func(o sweepOp) bool { return o.name == name })]
	}
	if name == deleteCommand {
		w.begin(operation("exec")) // with a container that runs
		w.Must(unix.Kill(w.shim.Pid, unix.SIGKILL), "kill the shim")
		w.Faults = faults
		_, err := w.DeleteCommand(w.bundle)
		w.Faults = nil
		if err != nil && !strings.Contains(err.Error(), "signal: killed") {
			t.Error(err)
		}
		removeDead(w)
		return err != nil
	}
	o := operation(name)
	w.begin(o)
	detach := faults.Into(w.target().Pid)
	err := o.do(w)
	died := err != nil && lost(err)
	if died {
		harness.Eventually(t, "death of the shim", func() error {
			if harness.Alive(w.target().Pid) {
				return fmt.Errorf("it lives after %w", err)
			}
			return nil
		})
	}
	detach()
	if died || name == opUpgrade && !harness.Alive(w.target().Pid) { // a successor may die after its answer
		removeDead(w)
		return true
	}
	if name == opUpgrade {
		w.Must(w.outlived(), "the container of an upgrade")
	}
	w.Must(w.finish(), "finish")
	w.Must(w.bystanders(), "bystanders")
	w.end()
	return err != nil // a child of the shim was killed
}
