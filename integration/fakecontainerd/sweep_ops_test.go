// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

// world is a shim with a container that nobody touches, another shim with one, and what one run of the sweep makes.
type world struct {
	*fakecontainerd.Fake
	shim, other         *fakecontainerd.Shim
	home, bundle, stays *fakecontainerd.Bundle // home's container and that of the other shim stay; bundle's is of the run
	pod                 *fakecontainerd.Shim   // of the run; nil for none
	runs                int
}

// sweepOp is an operation of which system calls fail.
type sweepOp struct {
	name    string
	prepare func(*world)
	do      func(*world) error
}

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
		{"pod", (*world).newPod, func(w *world) error {
			err := w.pod.CreateSandbox(w.bundle, func(c *cri.PodSandboxConfig) {
				c.Hostname = "box"
				c.Linux.CgroupParent = "/" + w.Namespace + "/pod-" + w.bundle.ID
				c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_POD
			})
			if err == nil {
				_, err = w.pod.Sandbox().Start(w.Ctx, w.bundle.ID)
			}
			return err
		}},
	}
}

// newWorld makes a world for t. All that is in it ends with endWorld.
func newWorld(f *fakecontainerd.Fake) *world {
	f.Helper()
	w := &world{Fake: f}
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
	for _, words := range []string{"ttrpc: closed", "connection reset", "broken pipe", "EOF"} {
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
