// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

// fakePod is a pod without namespaces.
type fakePod struct {
	Pod        // nothing else of it is called
	pid    int // that of this process for a pod without a process of its own
	cgroup string
	exited chan struct{}
	once   sync.Once

	mu      sync.Mutex
	request pod.Request
	failing map[string]error // by the name of the call
	calls   []string
}

func newFakePod() *fakePod {
	return &fakePod{pid: os.Getpid(), exited: make(chan struct{}), failing: map[string]error{}}
}

func (p *fakePod) call(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, name)
	return p.failing[name]
}

func (p *fakePod) fail(name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing[name] = err
}

func (p *fakePod) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.calls, " ")
}

func (p *fakePod) make(_ context.Context, r pod.Request) (Pod, error) {
	p.request = r
	if err := p.call("create"); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *fakePod) Start(context.Context) error { return p.call("start") }
func (p *fakePod) Pid() int                    { return p.pid }
func (p *fakePod) Spec() *specs.Spec           { return &specs.Spec{Hostname: "of the pod"} }
func (p *fakePod) CgroupPath() string          { return p.cgroup }

func (p *fakePod) Wait() (status int, at time.Time) {
	<-p.exited
	return 137, time.Unix(5, 0)
}

func (p *fakePod) Adapt(spec *specs.Spec) error {
	spec.Hostname = "of the pod"
	return p.call("adapt")
}

// Close ends the process that the pod may have.
func (p *fakePod) Close() error {
	err := p.call("close")
	if err == nil {
		p.die()
	}
	return err
}

func (p *fakePod) die() {
	if p.pid != os.Getpid() {
		p.once.Do(func() { close(p.exited) })
	}
}

// newController controls a pod "s" that is not created yet.
func newController(t *testing.T, e *processtest.Runtime) (*Controller, *fakePod, CreateRequest) {
	t.Helper()
	p := newFakePod()
	r := CreateRequest{ID: "s", Bundle: testx.NewBundle(t, nil), Config: pod.Config{}}
	return New(newTasks(t, e, func(event.Event) {}), p.make), p, r
}

// runPod creates and starts the pod "s", with containers.
func runPod(t *testing.T, e *processtest.Runtime, ids ...string) (*Controller, *fakePod) {
	t.Helper()
	s, p, r := newController(t, e)
	testx.Must(t, s.Create(t.Context(), r))
	_, err := s.Start(t.Context(), "s")
	testx.Must(t, err)
	for _, id := range ids {
		runIn(t, s, id, testx.NewBundle(t, goodSpec()))
	}
	return s, p
}

// runHeld creates and starts the pod "s", whose namespaces a process holds.
func runHeld(t *testing.T, e *processtest.Runtime) (*Controller, *fakePod) {
	t.Helper()
	s, p, r := newController(t, e)
	p.pid = 4321
	testx.Must(t, s.Create(t.Context(), r))
	_, err := s.Start(t.Context(), "s")
	testx.Must(t, err)
	return s, p
}

// runIn creates and starts a container.
func runIn(t *testing.T, s *Controller, id, bundle string) *task.Task {
	t.Helper()
	c, err := s.tasks.Create(t.Context(), task.CreateRequest{ID: id, Bundle: bundle})
	testx.Must(t, err)
	testx.Must(t, c.Init().Start(t.Context()))
	return c
}

// class is the class of an error, in a word.
func class(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errdefs.IsNotFound(err):
		return "not found"
	case errdefs.IsAlreadyExists(err):
		return "exists"
	case errdefs.IsFailedPrecondition(err):
		return "precondition"
	case errdefs.IsUnavailable(err):
		return "unavailable"
	case errdefs.IsInvalidArgument(err):
		return "invalid"
	}
	return err.Error()
}

// Every call in every stage.
func TestStages_AllowTheseCalls(t *testing.T) {
	ops := []struct {
		name string
		call func(s *Controller, r CreateRequest) error
	}{
		{"create", func(s *Controller, r CreateRequest) error { return s.Create(context.Background(), r) }},
		{"create another", func(s *Controller, r CreateRequest) error {
			r.ID = "s2"
			return s.Create(context.Background(), r)
		}},
		{"start", func(s *Controller, r CreateRequest) error { _, err := s.Start(context.Background(), r.ID); return err }},
		{"member", func(s *Controller, r CreateRequest) error {
			_, err := s.tasks.Create(context.Background(), task.CreateRequest{ID: "m", Bundle: filepath.Join(filepath.Dir(r.Bundle), "member")})
			return err
		}},
		{"stop", func(s *Controller, r CreateRequest) error { return s.Stop(context.Background(), r.ID, 0) }},
		{"wait", func(s *Controller, r CreateRequest) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if _, err := s.Wait(ctx, r.ID); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		}},
		{"status", func(s *Controller, r CreateRequest) error { _, err := s.Status(r.ID); return err }},
		{"ping", func(s *Controller, r CreateRequest) error { return s.Ping(r.ID) }},
		{"metrics", func(s *Controller, r CreateRequest) error { _, err := s.Metrics(r.ID); return err }},
		{"shutdown", func(s *Controller, r CreateRequest) error { return s.Shutdown(context.Background(), r.ID) }},
	}
	stages := []struct{ name, steps, want string }{
		{"no pod", "", "create:ok create another:ok start:not found member:ok stop:not found wait:not found status:not found ping:not found metrics:not found shutdown:ok"},
		{"a container in no pod", "member", "create:precondition create another:precondition start:not found member:exists stop:not found wait:not found status:not found ping:not found metrics:not found shutdown:not found"},
		{"created", "create", "create:exists create another:exists start:ok member:precondition stop:ok wait:ok status:ok ping:ok metrics:ok shutdown:ok"},
		{"started", "create,start", "create:exists create another:exists start:precondition member:ok stop:ok wait:ok status:ok ping:ok metrics:ok shutdown:ok"},
		{"stopped before start", "create,stop", "create:exists create another:exists start:precondition member:precondition stop:ok wait:ok status:ok ping:ok metrics:ok shutdown:ok"},
		{"stopped", "create,start,member,stop", "create:exists create another:exists start:precondition member:exists stop:ok wait:ok status:ok ping:ok metrics:ok shutdown:ok"},
		{"shut down", "create,start,member,shutdown", "create:unavailable create another:unavailable start:not found member:unavailable stop:not found wait:not found status:not found ping:not found metrics:not found shutdown:not found"},
	}
	for _, stage := range stages {
		t.Run(stage.name, func(t *testing.T) {
			var got []string
			for _, op := range ops {
				s, p, r := newController(t, newRuntime())
				p.cgroup = "/"
				testx.Write(t, filepath.Join(filepath.Dir(r.Bundle), "member", specFile), `{"root":{"path":"/"},"process":{"args":["true"],"cwd":"/"},"linux":{}}`)
				for step := range strings.SplitSeq(stage.steps, ",") {
					for _, o := range ops {
						if o.name == step {
							testx.Must(t, o.call(s, r))
						}
					}
				}
				got = append(got, op.name+":"+class(op.call(s, r)))
			}
			if diff := cmp.Diff(stage.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestStages_ErrorsNameTheStage(t *testing.T) {
	s, _, r := newController(t, newRuntime())
	testx.Must(t, s.Create(t.Context(), r))
	_, err := s.tasks.Create(t.Context(), task.CreateRequest{ID: "m", Bundle: testx.NewBundle(t, goodSpec())})
	testx.WantText(t, err, `"m"`, `"s"`, "cannot create a container: the pod is created")
	testx.Must(t, s.Stop(t.Context(), "s", 0))
	_, err = s.Start(t.Context(), "s")
	testx.WantText(t, err, `"s"`, "cannot start: the pod is stopped")
	r.ID = "s2"
	testx.WantText(t, s.Create(t.Context(), r), `"s2"`, `"s"`)
}

func TestCreate_Refuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, r *CreateRequest)
		want   []string
	}{
		{"an id that is a path", func(_ *testing.T, r *CreateRequest) { r.ID = "../x" }, []string{"sandbox id", "../x"}},
		{"no id", func(_ *testing.T, r *CreateRequest) { r.ID = "" }, []string{"sandbox id"}},
		{"a relative bundle", func(_ *testing.T, r *CreateRequest) { r.Bundle = "b" }, []string{"bundle", `"b"`}},
		{"an annotation of ours that there is not", func(_ *testing.T, r *CreateRequest) {
			r.Config = pod.Config{Annotations: map[string]string{"io.containerd.sandbox.v1/shm-sice": "1Gi"}}
		}, []string{"annotations", "shm-sice", pod.ShmSizeAnnotation}},
		{"what pkg/pod refuses", func(*testing.T, *CreateRequest) {}, []string{"netns_path"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, p, r := newController(t, newRuntime())
			p.fail("create", fmt.Errorf("netns_path: %w", errdefs.ErrInvalidArgument))
			good := r
			tc.change(t, &r)
			before := testx.Files(t, good.Bundle)
			testx.WantInvalid(t, s.Create(t.Context(), r), tc.want...)
			if got := testx.Files(t, good.Bundle); got != before {
				t.Errorf("files in the bundle = %q, want %q", got, before)
			}
			// Nothing is left that would be in the way.
			p.fail("create", nil)
			testx.Must(t, s.Create(t.Context(), good))
		})
	}
}

func TestCreate_PassesOnWhatIsAsked(t *testing.T) {
	s, p, r := newController(t, newRuntime())
	r.Config = pod.Config{Hostname: "h", NetNS: "/netns", Annotations: map[string]string{"a": "of the pod"}}
	r.Annotations = map[string]string{"a": "of the request", "b": "too"}
	testx.Must(t, s.Create(t.Context(), r))
	got := p.request
	if got.ID != "s" || got.Bundle != r.Bundle || got.Config.NetNS != "/netns" || got.Config.Hostname != "h" {
		t.Errorf("request = %+v", got)
	}
	if diff := cmp.Diff(map[string]string{"a": "of the pod", "b": "too"}, got.Config.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestStart_AnswersAndCanBeTriedAgain(t *testing.T) {
	s, p, r := newController(t, newRuntime())
	before := time.Now()
	testx.Must(t, s.Create(t.Context(), r))
	p.fail("start", errors.New("no namespaces left"))
	_, err := s.Start(t.Context(), "s")
	testx.WantText(t, err, `"s"`, "no namespaces left")
	p.fail("start", nil)
	got, err := s.Start(t.Context(), "s")
	testx.Must(t, err)
	if got.Pid != os.Getpid() || got.CreatedAt.Before(before) || got.Spec.Hostname != "of the pod" {
		t.Errorf("StartPod = %+v", got)
	}
}

func TestContainers_GetWhatThePodHas(t *testing.T) {
	engine := newRuntime()
	s, p := runPod(t, engine, "m")
	if got := engine.Containers()[0].Config.Spec.Hostname; got != "of the pod" {
		t.Errorf("hostname = %q, want that of the pod", got)
	}
	p.fail("adapt", fmt.Errorf("mounts[3]: %w", errdefs.ErrInvalidArgument))
	bundle := testx.NewBundle(t, goodSpec())
	_, err := s.tasks.Create(t.Context(), task.CreateRequest{ID: "m2", Bundle: bundle})
	testx.WantInvalid(t, err, `"m2"`, "mounts[3]")
	if got, want := testx.Files(t, bundle), specFile+" "+rootfsDir; got != want {
		t.Errorf("files = %q, want %q", got, want)
	}
}

func TestStatus(t *testing.T) {
	s, p, r := newController(t, newRuntime())
	r.Config.Hostname = "name"
	stages := []struct {
		step func() error
		want Status
	}{
		{func() error { return s.Create(t.Context(), r) }, Status{ID: "s", Stage: Created}},
		{func() error { _, err := s.Start(t.Context(), "s"); return err }, Status{ID: "s", Stage: Running, Pid: p.pid}},
		{func() error { return s.Stop(t.Context(), "s", 0) }, Status{ID: "s", Stage: Stopped}},
	}
	for _, stage := range stages {
		testx.Must(t, stage.step())
		got, err := s.Status("s")
		testx.Must(t, err)
		if got.CreatedAt.IsZero() || got.Exit.At.IsZero() != (got.Stage != Stopped) {
			t.Errorf("%v: created at %v, exited at %v", got.Stage, got.CreatedAt, got.Exit.At)
		}
		if got.Config.Hostname != "name" || (got.Spec == nil) != (got.Stage == Created) {
			t.Errorf("%v: configuration %+v, specification %v", got.Stage, got.Config, got.Spec)
		}
		got.CreatedAt, got.Exit, got.Config, got.Spec = time.Time{}, process.Exit{}, pod.Config{}, nil
		if diff := cmp.Diff(stage.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", stage.want.Stage, diff)
		}
	}
}

func TestMetrics_OfAPodWithoutACgroup(t *testing.T) {
	for _, path := range []string{"", "/there/is/none"} {
		s, p := runPod(t, newRuntime())
		p.cgroup = path
		if _, err := s.Metrics("s"); !errdefs.IsNotFound(err) {
			t.Errorf("metrics of a pod in cgroup %q = %v, want not found", path, err)
		}
	}
}

// The interceptor of calls catches a panic, and the shim goes on. A pod of which there is only a part must not keep it
// from its end.
func TestCreate_PanicLeavesNoPod(t *testing.T) {
	tasks := newTasks(t, newRuntime(), func(event.Event) {})
	c := New(tasks, func(context.Context, pod.Request) (Pod, error) { panic("a bug") })
	bundle := testx.NewBundle(t, nil)
	func() {
		defer func() {
			if p := recover(); p == nil {
				t.Error("the panic was lost")
			}
		}()
		_ = c.Create(t.Context(), CreateRequest{ID: "s", Bundle: bundle, Config: pod.Config{}})
	}()
	testx.Must(t, c.Shutdown(t.Context(), "s"))
	if !testx.Closed(tasks.Done()) {
		t.Error("the shim does not end")
	}
}

// A pod that was never started is not taken for one that somebody stops, after the first time.
func TestShutdownIdle_IsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, r := newController(t, newRuntime())
		testx.Must(t, s.Create(t.Context(), r))
		p.fail("close", errors.New("busy"))
		began := time.Now()
		s.ShutdownIdle()
		tries := func() int { return strings.Count(p.log(), "close") }
		for tried := range 3 {
			synctest.Wait()
			if got := tries(); got != tried+1 {
				t.Errorf("tried %d times within %v, want %d", got, time.Since(began), tried+1)
			}
			time.Sleep(retryTime)
		}
		synctest.Wait()
		if testx.Closed(s.tasks.Done()) {
			t.Error("the shim ends although it could not end the pod")
		}
		p.fail("close", nil)
		time.Sleep(retryTime)
		synctest.Wait()
		if !testx.Closed(s.tasks.Done()) {
			t.Error("the shim does not end")
		}
		last := tries()
		time.Sleep(24 * time.Hour)
		if got := tries(); got != last {
			t.Errorf("tried %d times more after that", got-last)
		}
	})
}

// Neither one that lives nor one that cannot be deleted keeps others, and it is not forgotten.
func TestShutdownIdle_ComesBackForAnAbandonedContainerThatLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newController(t, newRuntime())
		kill := map[string]func(){}
		for _, id := range []string{"a", "b", "c"} {
			bundle := testx.NewBundle(t, goodSpec())
			c := runIn(t, s, id, bundle)
			kill[id] = func() { killed(t, c) }
			testx.Must(t, os.RemoveAll(bundle))
		}
		kill["b"]()
		kill["c"]()
		s.ShutdownIdle()
		for _, id := range []string{"b", "c"} {
			if _, err := s.tasks.Container(id); err == nil {
				t.Errorf("container %s, which is dead, was not deleted", id)
			}
		}
		time.Sleep(24 * time.Hour)
		if testx.Closed(s.tasks.Done()) {
			t.Error("the shim has ended, and a container lives")
		}
		kill["a"]()
		time.Sleep(2 * retryTime)
		synctest.Wait()
		if !testx.Closed(s.tasks.Done()) {
			t.Error("the shim does not end, although all containers are dead")
		}
	})
}

func TestShutdownIdle(t *testing.T) {
	for _, tc := range []struct {
		name, steps string
		ends        bool
	}{
		{"nothing", "", true},
		{"a container", "container", false},
		{"a pod that nobody started", "create", true},
		{"a pod that runs", "create start", false},
		{"a pod that was stopped", "create stop", false},
		{"a pod that runs, and whose bundle is gone", "create start lose-pod", true},
		{"a container in a pod whose bundle is gone", "create start container lose-pod", false},
		{"a container that has died and whose bundle is gone", "container die lose-container", true},
		{"a container that has died", "container die", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, _, r := newController(t, newRuntime())
			bundle := testx.NewBundle(t, goodSpec())
			var c *task.Task
			for step := range strings.FieldsSeq(tc.steps) {
				var err error
				switch step {
				case "create":
					err = s.Create(t.Context(), r)
				case "start":
					_, err = s.Start(t.Context(), "s")
				case "stop":
					err = s.Stop(t.Context(), "s", 0)
				case "container":
					c, err = s.tasks.Create(t.Context(), task.CreateRequest{ID: "c", Bundle: bundle})
				case "die":
					killed(t, c)
				case "lose-pod":
					err = os.RemoveAll(r.Bundle)
				case "lose-container":
					err = os.RemoveAll(bundle)
				}
				testx.Must(t, err)
			}
			s.ShutdownIdle()
			if got := testx.Closed(s.tasks.Done()); got != tc.ends {
				t.Errorf("the shim ends: %t, want %t", got, tc.ends)
			}
		})
	}
}

// killed kills a container and waits for its exit.
func killed(t *testing.T, c *task.Task) {
	t.Helper()
	testx.Must(t, c.KillAll(t.Context(), syscall.SIGKILL))
	_, err := c.Init().Wait(t.Context())
	testx.Must(t, err)
}

// What is in a bundle.
const (
	specFile  = "config.json"
	rootfsDir = "rootfs"
)

// newRuntime makes containers without a kernel, whose processes die of all signals but these.
func newRuntime(deafTo ...syscall.Signal) *processtest.Runtime {
	r := &processtest.Runtime{PID: 4321}
	r.SetDeaf(func(sig syscall.Signal) bool { return slices.Contains(deafTo, sig) })
	return r
}

// newTasks is a registry whose events go to told, in a goroutine of its own.
func newTasks(t *testing.T, e *processtest.Runtime, told func(event.Event)) *task.Manager {
	t.Helper()
	queue := event.NewQueue(func(_ context.Context, ev event.Event, _ time.Time) error { told(ev); return nil })
	t.Cleanup(func() { testx.Must(t, queue.Close(context.Background())) })
	tasks := task.New(e, queue, stdio.NewHost("ns", noReaper{}), nil, settings.Core())
	tasks.KeepIndex("s", "/nowhere", "/the/socket", nil)
	return tasks
}

func goodSpec() *specs.Spec {
	return &specs.Spec{
		Root:    &specs.Root{Path: rootfsDir},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/c"},
	}
}

// noReaper is for a process that reaps no orphans.
type noReaper struct{ stdio.Children }

func (noReaper) Suspend() (resume func()) { return func() {} }
