// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package settings reads the annotations of a container and the runtime options that apply without them
// (docs/configuration.md; ARCHITECTURE.md says how to add one). Extensions check the values of their own settings.
package settings

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/signal"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

// MaxTimeout is the longest time of a setting, and lastSignal the last number of one.
const (
	MaxTimeout   = 24 * time.Hour   // a longer one is probably a typo
	defaultGrace = 10 * time.Second // that of a container with only a stop signal; Docker gives as much
	lastSignal   = 64               // SIGRTMAX, signal(7)
)

// Settings of one container.
type Settings struct {
	Values                 // all, for extensions
	CPUSetSource  Value    // cgroups; the container gets the CPUs of the first that exists; not set: none
	CPUSetSources []string // these, without placeholders; may be empty
	CPUSetMems    bool     // and its memory nodes
	Stop          process.Stop
	StopIsSet     bool          // an annotation or an option says how to stop
	ExecLimits    *limit.Limits // nil: none
	VerdictFile   Value         // its Text is the path, with {exec} in it; not set: none
}

// Parse reads the settings of a container. Values of extensions are not checked.
func (t Table) Parse(spec *specs.Spec, o options.Options, namespace, containerID string) (Settings, error) {
	if err := t.checkUnsafe(spec.Annotations, o); err != nil {
		return Settings{}, err
	}
	s := Settings{
		Values: t.ValuesOf(spec.Annotations, o, namespace, containerID),
		Stop:   process.Stop{Signal: unix.SIGTERM, Grace: defaultGrace},
	}
	if err := cmp.Or(s.parseCPUSet(containerID), s.parseStop(), s.parseLimits()); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// nomadID matches the id of a task's container: TASK-ALLOC, and on cgroup v2 ALLOC.TASK.scope
// (nomad-driver-containerd, getContainerName). An allocation's id is a UUID.
var nomadID = sync.OnceValue(func() *regexp.Regexp {
	const uuid = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`
	return regexp.MustCompile(`^(?:(.+)-(` + uuid + `)|(` + uuid + `)\.(.+?)(?:\.scope)?)$`)
})

// parseCPUSet leaves out a source with a part of a Nomad task's id if the container's id is not one. containerID has
// no slash.
func (s *Settings) parseCPUSet(containerID string) (err error) {
	if s.CPUSetSource = s.Of("cpuset.source"); s.CPUSetSource.IsSet() {
		nomad := nomadID().FindStringSubmatch(containerID)
		placeholders := strings.NewReplacer("{alloc}", "", "{task}", "")
		if nomad != nil {
			placeholders = strings.NewReplacer("{alloc}", nomad[2]+nomad[3], "{task}", nomad[1]+nomad[4])
		}
		for text := range strings.SplitSeq(s.CPUSetSource.Text, ",") {
			text = strings.TrimSpace(text)
			source := placeholders.Replace(text)
			expanded := s.Expand(source)
			if text == "" || strings.ContainsAny(expanded, "{}") {
				return s.CPUSetSource.Refuse("parent or the path of a cgroup, or several with commas between them; " +
					"{id}, {namespace}, {alloc} and {task} stand for the container's")
			}
			if nomad != nil || source == text {
				s.CPUSetSources = append(s.CPUSetSources, expanded)
			}
		}
	}
	mems := s.Of("cpuset.mems")
	s.CPUSetMems, err = mems.Bool()
	if err == nil && s.CPUSetMems && mems.ByAnnotation && !s.CPUSetSource.IsSet() {
		return mems.Needs("cpuset.source", "CpusetSource")
	}
	return err
}

func (s *Settings) parseStop() (err error) {
	name, timeout := s.Of("stop-signal"), s.Of("stop-timeout")
	s.StopIsSet = name.IsSet() || timeout.IsSet()
	if name.IsSet() {
		s.Stop.Signal, err = signal.ParseSignal(name.Text)
		if err != nil || s.Stop.Signal < 1 || s.Stop.Signal > lastSignal {
			return name.Refuse("the name of a signal, such as SIGTERM, QUIT or SIGRTMIN+3, or a number from 1 to 64")
		}
	}
	if timeout.IsSet() {
		s.Stop.Grace, err = timeout.grace()
	}
	return err
}

func (s *Settings) parseLimits() (err error) {
	if limits := s.Of("exec-limits"); limits.IsSet() {
		if s.ExecLimits, err = limit.Parse(limits.Key, limits.Text); err != nil {
			return err
		}
	}
	v := s.Of("verdict-file")
	if !v.IsSet() {
		return nil
	}
	switch dir, file := path.Split(v.Text); {
	case !path.IsAbs(v.Text), !strings.Contains(file, "{exec}"), strings.Contains(dir, "{exec}"),
		!v.ByAnnotation && !strings.Contains(v.Text, "{id}"):
		return v.Refuse("an absolute path with {exec} in the name of the file, and in an option, for all containers, {id}")
	case s.ExecLimits == nil && v.ByAnnotation:
		return v.Needs("exec-limits", "")
	case s.ExecLimits != nil: // else the option is for those that have verdicts
		v.Text = s.Expand(v.Text)
		s.VerdictFile = v
	}
	return nil
}

// Value is the text of an annotation or of a runtime option, or zero.
type Value struct {
	Key          string // which of them, for messages
	Text         string
	ByAnnotation bool
}

// Values are the unchecked settings of one container.
type Values struct {
	byName map[string]Value
	id     *strings.Replacer
}

// ValuesOf returns the settings of a container.
func (t Table) ValuesOf(annotations map[string]string, o options.Options, namespace, containerID string) Values {
	v := Values{map[string]Value{}, strings.NewReplacer("{id}", containerID, "{namespace}", namespace)}
	for _, s := range t {
		if text, ok := annotations[Prefix+s.Name]; ok {
			v.byName[s.Name] = Value{Key: "config.json: annotations: " + Prefix + s.Name, Text: text, ByAnnotation: true}
		} else if text := o.Settings[s.Option]; text != "" {
			v.byName[s.Name] = Value{Key: o.Origin() + ": " + s.Option, Text: text}
		}
	}
	return v
}

// Of returns the value of a setting.
func (v Values) Of(name string) Value { return v.byName[name] }

// Expand replaces {id} and {namespace} with those of the container.
func (v Values) Expand(text string) string { return v.id.Replace(text) }

// IsSet reports whether there is an annotation, or an option that is not empty.
func (v Value) IsSet() bool { return v.ByAnnotation || v.Text != "" }

// Refuse returns the error that names what is allowed.
func (v Value) Refuse(allowed string) error {
	return fmt.Errorf("%s %q: must be %s: %w", v.Key, v.Text, allowed, errdefs.ErrInvalidArgument)
}

// Needs returns the error for a value without effect.
func (v Value) Needs(annotation, option string) error {
	other := option
	if v.ByAnnotation {
		other = Prefix + annotation
	}
	return fmt.Errorf("%s %q: has no effect without %s: set that as well, or remove this one: %w",
		v.Key, v.Text, other, errdefs.ErrInvalidArgument)
}

// Bool returns false if v is not set.
func (v Value) Bool() (bool, error) {
	if v.IsSet() && v.Text != "true" && v.Text != "false" {
		return false, v.Refuse("true or false")
	}
	return v.Text == "true", nil
}

// grace reads a time or a number of seconds. 0 is allowed.
func (v Value) grace() (time.Duration, error) {
	d, err := time.ParseDuration(v.Text)
	if err != nil {
		d, err = time.ParseDuration(v.Text + "s")
	}
	if err != nil || d < 0 || d > MaxTimeout {
		return 0, v.Refuse("a time such as 10s or 1m30s, or a number of seconds, from 0 to 24h")
	}
	return d, nil
}
