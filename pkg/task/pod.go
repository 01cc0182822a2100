// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stats"
)

// Pod is what this package asks of pkg/pod; a *pod.Pod is one.
type Pod interface {
	Start(ctx context.Context) error
	Pid() int
	Spec() *specs.Spec
	Adapt(spec *specs.Spec) error
	Exited() <-chan struct{}
	Exit() (status int, at time.Time)
	CgroupPath() string
	Close() error
}

// PodMaker is pod.Create with what does not change from pod to pod.
type PodMaker func(ctx context.Context, r pod.Request) (Pod, error)

// podLife is the pod of a sandbox that CreatePod made. A shim has one at most.
// Where it says mu, that is Manager.mu.
type podLife struct {
	id, bundle string
	config     pod.Config
	createdAt  time.Time

	turn   chan struct{} // one slot, for Start and for the goroutine of a stop; taken before mu
	exited chan struct{} // closed once, when exit is set

	// Guarded by mu.
	pod      Pod // nil while it is being created
	stage    PodStage
	started  StartedPod    // from PodStarted on
	stopping *podStopping  // under way, or nil
	died     *process.Exit // the process that holds the namespaces did; nil if it lives, or there is none
	ended    *process.Exit // what exit will be, once all containers are dead
	exit     process.Exit
	again    *time.Timer   // calls Unattended, which failed; nil if it did not
	retry    time.Duration // of again
	stats    *stats.Reader // nil until it is asked for
	updated  PodResources
}

// ServePods lets sandboxes be created: by make.
func (m *Manager) ServePods(make PodMaker) { m.makePod = make }

// PodRequest is CreateSandbox.
type PodRequest struct {
	ID     string
	Bundle string // absolute path
	NetNS  string // path of the network namespace; empty for the host's, or if the configuration says it
	// Config is nil when the configuration is the bundle's config.json.
	Config      *pod.Config
	Annotations map[string]string // more than those of Config
}

// CreatePod makes what the containers of a sandbox share, but for namespaces.
// When it fails, nothing is left of it.
func (m *Manager) CreatePod(ctx context.Context, r PodRequest) (err error) {
	config, err := m.podConfig(&r)
	if err != nil {
		return err
	}
	p := &podLife{
		id: r.ID, bundle: r.Bundle, config: config, createdAt: time.Now(),
		turn: make(chan struct{}, 1), exited: make(chan struct{}),
	}
	if err := m.reservePod(p); err != nil {
		return err
	}
	undo := undoList{{"sandbox's id", func() error { m.setPod(nil); return nil }}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("sandbox %q: %w", r.ID, errors.Join(err, undo.run()))
		}
	}()
	undo.add("list of containers", func() error { return m.members.setPod(r.ID, r.Bundle, false) })
	if err := m.members.setPod(r.ID, r.Bundle, true); err != nil {
		return err
	}
	made, err := m.makePod(ctx, pod.Request{
		ID: r.ID, Bundle: r.Bundle, NetNS: r.NetNS, Config: config,
		SystemdCgroup: strings.HasSuffix(config.CgroupParent, ".slice"),
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	p.pod, p.stage = made, PodCreated
	m.mu.Unlock()
	return nil
}

// podConfig gathers and checks what is asked for, but for what pkg/pod checks.
func (m *Manager) podConfig(r *PodRequest) (pod.Config, error) {
	if err := validID("sandbox id", r.ID); err != nil {
		return pod.Config{}, err
	}
	fail := func(err error) (pod.Config, error) {
		return pod.Config{}, fmt.Errorf("sandbox %q: %w", r.ID, err)
	}
	if m.makePod == nil {
		return fail(fmt.Errorf("create: %w", errdefs.ErrNotImplemented))
	}
	if !filepath.IsAbs(r.Bundle) {
		return fail(fmt.Errorf("bundle %q: must be an absolute path: %w", r.Bundle, errdefs.ErrInvalidArgument))
	}
	if info, err := os.Stat(r.Bundle); err != nil || !info.IsDir() {
		return fail(fmt.Errorf("bundle %q: must be a directory that exists: %w", r.Bundle, errdefs.ErrInvalidArgument))
	}
	r.Bundle = filepath.Clean(r.Bundle)
	if r.Config == nil {
		spec, err := readSpec(r.Bundle)
		if err != nil {
			return fail(fmt.Errorf("no options are given: %w", err))
		}
		c, err := pod.ConfigFromSpec(spec)
		if err != nil {
			return fail(err)
		}
		r.Config = &c
	}
	config := *r.Config
	annotations := maps.Clone(r.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, config.Annotations)
	config.Annotations = annotations
	if err := checkAnnotations(annotations); err != nil {
		return fail(err)
	}
	if r.NetNS == "" {
		r.NetNS = config.NetNS
	}
	return config, nil
}

// reservePod makes p the sandbox's pod, if it has none.
func (m *Manager) reservePod(p *podLife) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return fmt.Errorf("sandbox %q: the shim is shutting down: %w", p.id, errdefs.ErrUnavailable)
	case m.pod != nil:
		return fmt.Errorf("sandbox %q: this shim has sandbox %q: %w", p.id, m.pod.id, errdefs.ErrAlreadyExists)
	case len(m.containers) > 0:
		return fmt.Errorf("sandbox %q: this shim has containers that are in no sandbox: %w", p.id, errdefs.ErrFailedPrecondition)
	}
	m.pod = p
	return nil
}

func (m *Manager) setPod(p *podLife) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pod = p
}

// podLocked finds the pod. mu is held.
func (m *Manager) podLocked(sandboxID string) (*podLife, error) {
	if m.pod == nil || m.pod.id != sandboxID {
		return nil, fmt.Errorf("sandbox %q: not created: %w", sandboxID, errdefs.ErrNotFound)
	}
	return m.pod, nil
}

// checkLocked refuses op before its side effect. mu is held.
func (p *podLife) checkLocked(op podOp) error {
	if _, err := p.stage.next(op); err != nil {
		return fmt.Errorf("sandbox %q: %w", p.id, err)
	}
	return nil
}

// StartedPod is what StartSandbox answers.
type StartedPod struct {
	Pid       int // of the process that holds the namespaces
	CreatedAt time.Time
	Spec      *specs.Spec
}

// StartPod makes the pod's namespaces, after which containers can be created. It
// can be tried again when it fails.
func (m *Manager) StartPod(ctx context.Context, sandboxID string) (StartedPod, error) {
	m.mu.Lock()
	p, err := m.podLocked(sandboxID)
	m.mu.Unlock()
	if err != nil {
		return StartedPod{}, err
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return StartedPod{}, fmt.Errorf("sandbox %q: start: another operation is still under way: %w", p.id, ctx.Err())
	}
	m.mu.Lock()
	err = p.checkLocked(podStart)
	m.mu.Unlock()
	if err != nil {
		return StartedPod{}, err
	}
	if err := p.pod.Start(ctx); err != nil {
		return StartedPod{}, fmt.Errorf("sandbox %q: %w", p.id, err)
	}
	started := StartedPod{Pid: p.pod.Pid(), CreatedAt: p.createdAt, Spec: p.pod.Spec()}
	rec := record{Root: defaultRoot(m.namespace), Pid: started.Pid}
	if err := rec.write(p.bundle); err != nil {
		log.L.WithError(err).WithField("sandbox", p.id).Warn("record pid")
	}
	m.mu.Lock()
	p.started = started
	if p.stage == PodCreated { // else a stop waits for its turn
		p.stage = PodStarted
	}
	m.mu.Unlock()
	if started.Pid != os.Getpid() {
		go m.awaitPod(p) // ends with that process, which the stop ends at the latest
	}
	return started, nil
}

// awaitPod waits for the end of a process that holds the pod's namespaces. Without
// it no container can be created, nor the pod be said to run.
func (m *Manager) awaitPod(p *podLife) {
	<-p.pod.Exited()
	status, at := p.pod.Exit()
	m.mu.Lock()
	p.died = &process.Exit{Status: status, At: at}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*deathTimeout)
	defer cancel()
	if err := m.StopPod(ctx, p.id, 0); err != nil && !errdefs.IsNotFound(err) {
		log.L.WithError(err).WithField("sandbox", p.id).Error("stop after the death of the process that holds its namespaces")
	}
}

// adapt gives a container what the pod has for it, if there is a pod.
func (m *Manager) adapt(spec *specs.Spec) error {
	m.mu.Lock()
	p := m.pod
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.pod.Adapt(spec) // the pod is started, or the container would not have been admitted
}
