// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package settings reads what a container is given beside its OCI configuration: by annotations of the configuration
// and, for containers without the annotation, by runtime options. docs/configuration.md describes them.
//
// To add one, add a row to the table (table.go) and a field to [Settings].
package settings

import (
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

const (
	// MaxTimeout is the longest timeout. A longer one is probably a typo.
	MaxTimeout = 24 * time.Hour
	// defaultGrace is for a container with a stop signal alone; Docker gives as much.
	defaultGrace = 10 * time.Second
	// defaultNotifyTimeout is systemd's (systemd-system.conf(5), DefaultTimeoutStartSec).
	defaultNotifyTimeout = 90 * time.Second
)

// Settings are those of one container. A Value is not checked yet: the package that it is for parses it.
type Settings struct {
	CPUSetSource  Value // cgroup whose CPUs the container gets; not set: none
	CPUSetMems    bool  // and its memory nodes
	Stop          process.Stop
	StopIsSet     bool          // an annotation or an option says how to stop
	NotifyTimeout time.Duration // for how long Start waits for READY=1; 0: it does not
	ExecCgroup    bool          // each exec gets a cgroup of its own
	ExecTimeout   time.Duration // after which an exec is killed; 0: never
	PidFile       Value         // its Text is the path; not set: none
	Listen        Value         // as listen.Parse reads it; not set: none
	// As pkg/hostrootfs reads them.
	HostRootfs, HostRootfsMask Value

	notify, execCgroup Value
}

// Parse reads the settings of a container. It changes nothing.
func Parse(spec *specs.Spec, o options.Options, namespace, containerID string) (Settings, error) {
	if err := checkUnsafe(spec.Annotations, o.AllowUnsafeAnnotations); err != nil {
		return Settings{}, err
	}
	s := Settings{Stop: process.Stop{Signal: unix.SIGTERM, Grace: defaultGrace}}
	for _, a := range table() {
		if a.parse == nil {
			continue
		}
		if err := a.parse(&s, a.valueOf(spec, o)); err != nil {
			return Settings{}, err
		}
	}
	s.PidFile.Text = strings.NewReplacer("{id}", containerID, "{namespace}", namespace).Replace(s.PidFile.Text)
	return s, nil
}

func (s *Settings) parseCPUSetSource(v Value) error {
	if v.Text == "" && v.ByAnnotation {
		return v.refuse("parent or the path of a cgroup")
	}
	s.CPUSetSource = v
	return nil
}

func (s *Settings) parseCPUSetMems(v Value) (err error) {
	s.CPUSetMems, err = v.bool()
	if err == nil && s.CPUSetMems && v.ByAnnotation && !s.CPUSetSource.IsSet() {
		return v.needs("cpuset.source", "CpusetSource")
	}
	return err
}

func (s *Settings) parseStopSignal(v Value) error {
	if !v.IsSet() {
		return nil
	}
	s.StopIsSet = true
	if s.Stop.Signal = parseSignal(v.Text); s.Stop.Signal == 0 {
		return v.refuse("the name of a signal, such as SIGTERM, QUIT or SIGRTMIN+3, or a number from 1 to 64")
	}
	return nil
}

func (s *Settings) parseStopTimeout(v Value) (err error) {
	if !v.IsSet() {
		return nil
	}
	s.StopIsSet = true
	s.Stop.Grace, err = v.grace()
	return err
}

func (s *Settings) parseNotify(v Value) error {
	on, err := v.bool()
	if s.notify = v; on {
		s.NotifyTimeout = defaultNotifyTimeout
	}
	return err
}

func (s *Settings) parseNotifyTimeout(v Value) error {
	timeout, err := v.timeout()
	if err != nil || timeout == 0 {
		return err
	}
	if s.NotifyTimeout > 0 {
		s.NotifyTimeout = timeout
		return nil
	}
	return v.uselessWithout(s.notify, "notify", "Notify")
}

func (s *Settings) parseExecCgroup(v Value) (err error) {
	s.execCgroup = v
	s.ExecCgroup, err = v.bool()
	return err
}

func (s *Settings) parseExecTimeout(v Value) error {
	timeout, err := v.timeout()
	if err != nil || timeout == 0 {
		return err
	}
	if s.ExecCgroup {
		s.ExecTimeout = timeout
		return nil
	}
	return v.uselessWithout(s.execCgroup, "exec-cgroup", "ExecCgroup")
}

func (s *Settings) parseHostRootfs(v Value) error {
	s.HostRootfs = v
	return nil
}

func (s *Settings) parseHostRootfsMask(v Value) error {
	s.HostRootfsMask = v
	return nil
}

func (s *Settings) parsePidFile(v Value) error {
	if v.IsSet() && !v.ByAnnotation && !strings.Contains(v.Text, "{id}") {
		return v.refuse("a path with {id} in it, since it is for all containers")
	}
	s.PidFile = v
	return nil
}

func (s *Settings) parseListen(v Value) error {
	if v.Text != listenNone {
		s.Listen = v
	}
	return nil
}
