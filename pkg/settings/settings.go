// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package settings reads what a container is given besides its OCI configuration: by annotations of the configuration
// and, for containers without the annotation, by runtime options. docs/configuration.md describes them.
//
// To add one, follow "To add an annotation" in ARCHITECTURE.md: a row and a field here are only the first two steps.
package settings

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/signal"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

const (
	// MaxTimeout is the longest timeout. A longer one is probably a typo.
	MaxTimeout = 24 * time.Hour
	// defaultGrace is for a container with only a stop signal; Docker gives as much.
	defaultGrace = 10 * time.Second
	// defaultNotifyTimeout is systemd's (systemd-system.conf(5), DefaultTimeoutStartSec).
	defaultNotifyTimeout = 90 * time.Second
	lastSignal           = 64 // SIGRTMAX, signal(7)
)

// Settings are those of one container. A Value is not checked yet: the package that it is for parses it.
type Settings struct {
	CPUSetSource  Value    // cgroups; the container gets the CPUs of the first that exists; not set: none
	CPUSetSources []string // these, without placeholders; may be empty
	CPUSetMems    bool     // and its memory nodes
	Stop          process.Stop
	StopIsSet     bool          // an annotation or an option says how to stop
	NotifyTimeout time.Duration // for how long Start waits for READY=1; 0: it does not
	Init          bool          // a small init is the first process
	ExecLimits    *limit.Limits // nil: none
	VerdictFile   Value         // its Text is the path, with {exec} in it; not set: none
	PidFile       Value         // its Text is the path; not set: none
	Listen        Value         // as listen.Parse reads it; not set: none
	// As pkg/hostrootfs reads them.
	HostRootfs, HostRootfsMask, HostRootfsUser Value
	TaskDir                                    Value // as process.Options has it; not set: none

	notify Value
}

// Parse reads the settings of a container. It changes nothing.
func Parse(spec *specs.Spec, o options.Options, namespace, containerID string) (Settings, error) {
	if err := cmp.Or(checkUnsafe(spec.Annotations, o), checkProperties(spec.Annotations)); err != nil {
		return Settings{}, err
	}
	s := Settings{Stop: process.Stop{Signal: unix.SIGTERM, Grace: defaultGrace}}
	for _, a := range table() {
		if a.parse == nil {
			continue
		}
		if v := a.valueOf(spec, o); v.IsSet() {
			if err := a.parse(&s, v); err != nil {
				return Settings{}, err
			}
		}
	}
	of := strings.NewReplacer("{id}", containerID, "{namespace}", namespace)
	s.PidFile.Text, s.VerdictFile.Text = of.Replace(s.PidFile.Text), of.Replace(s.VerdictFile.Text)
	s.CPUSetSources = expandSources(s.CPUSetSources, namespace, containerID)
	return s, nil
}

func (s *Settings) parseCPUSetSource(v Value) error {
	s.CPUSetSource, s.CPUSetSources = v, strings.Split(v.Text, ",")
	for i, source := range s.CPUSetSources {
		source = strings.TrimSpace(source)
		s.CPUSetSources[i] = source
		if source == "" || strings.ContainsAny(withoutPlaceholders.Replace(source), "{}") {
			return v.Refuse("parent or the path of a cgroup, or several with commas between them; " +
				"{id}, {namespace}, {alloc} and {task} stand for the container's")
		}
	}
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
	sig, err := signal.ParseSignal(v.Text)
	if err != nil || sig < 1 || sig > lastSignal {
		return v.Refuse("the name of a signal, such as SIGTERM, QUIT or SIGRTMIN+3, or a number from 1 to 64")
	}
	s.StopIsSet, s.Stop.Signal = true, sig
	return nil
}

func (s *Settings) parseStopTimeout(v Value) (err error) {
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
	d, err := time.ParseDuration(v.Text)
	switch {
	case err != nil || d <= 0 || d > MaxTimeout:
		return v.Refuse("a time such as 500ms, 90s or 1m30s, more than 0 and at most 24h")
	case s.NotifyTimeout > 0:
		s.NotifyTimeout = d
	case v.ByAnnotation || !s.notify.ByAnnotation: // else an annotation switches off the option
		return v.needs("notify", "Notify")
	}
	return nil
}

func (s *Settings) parseInit(v Value) (err error) {
	s.Init, err = v.bool()
	return err
}

func (s *Settings) parseExecLimits(v Value) (err error) {
	s.ExecLimits, err = limit.Parse(v.Key, v.Text)
	return err
}

func (s *Settings) parseVerdictFile(v Value) error {
	allowed := "an absolute path with {exec} in the name of the file"
	if !v.ByAnnotation {
		allowed += ", and with {id}, since it is for all containers"
	}
	switch dir, file := path.Split(v.Text); {
	case !path.IsAbs(v.Text), !strings.Contains(file, "{exec}"), strings.Contains(dir, "{exec}"),
		!v.ByAnnotation && !strings.Contains(v.Text, "{id}"):
		return v.Refuse(allowed)
	case s.ExecLimits == nil:
		if v.ByAnnotation {
			return v.needs("exec-limits", "")
		}
		return nil // an option is for those that have verdicts
	}
	s.VerdictFile = v
	return nil
}

func (s *Settings) parsePidFile(v Value) error {
	if !v.ByAnnotation && !strings.Contains(v.Text, "{id}") {
		return v.Refuse("a path with {id} in it, since it is for all containers")
	}
	s.PidFile = v
	return nil
}

// ofHostRootfs sets a value that has no effect without host-rootfs.
func (s *Settings) ofHostRootfs(to *Value, v Value) error {
	if s.HostRootfs.IsSet() && s.HostRootfs.Text != hostRootfsOff {
		*to = v
		return nil
	}
	if v.ByAnnotation {
		return v.needs("host-rootfs", "HostRootfs")
	}
	return nil
}

func (s *Settings) parseHostRootfsUser(v Value) error {
	if v.Text == "" {
		return v.Refuse("the name or the number of a user of the host, or user:group")
	}
	return s.ofHostRootfs(&s.HostRootfsUser, v)
}

func (s *Settings) parseTaskDir(v Value) error {
	if !path.IsAbs(v.Text) || path.Clean(v.Text) != v.Text || strings.ContainsRune(v.Text, 0) {
		return v.Refuse("an absolute path without //, . and ..")
	}
	return s.ofHostRootfs(&s.TaskDir, v)
}

func (s *Settings) parseListen(v Value) error {
	if v.Text == listenNone {
		return nil
	}
	if s.Init {
		return fmt.Errorf("%s %q: not possible with an init: the sockets are for the first process of the container: %w",
			v.Key, v.Text, errdefs.ErrInvalidArgument)
	}
	s.Listen = v
	return nil
}

// Prefix begins the name of each annotation.
const Prefix = "io.containerd.sandbox.v1/"

// annotation is a row of the table.
type annotation struct {
	name   string                       // without Prefix
	option string                       // the field of options.Options that applies without the annotation
	parse  func(*Settings, Value) error // is called with a value that is set; nil: it is a pod's, and read elsewhere

	unsafe    bool   // it gives a container access to the host or to other containers
	safeValue string // the value with which it does not
	// The option restricts containers, and the annotation would lift that. So it is unsafe if the option is set.
	optionRestricts bool
	defaultValue    string // the default, without annotation and option
}

// listenNone is the word for no sockets, hostRootfsOff for no directories of the host.
const (
	listenNone    = "none"
	hostRootfsOff = "off"
)

// table returns all annotations. One that needs another comes after it.
func table() []annotation {
	setHostRootfs := func(s *Settings, v Value) error { s.HostRootfs = v; return nil }
	setHostRootfsMask := func(s *Settings, v Value) error { s.HostRootfsMask = v; return nil }
	return []annotation{
		// Another source may be any cgroup of the machine.
		{
			name: "cpuset.source", option: "CpusetSource", parse: (*Settings).parseCPUSetSource,
			unsafe: true, safeValue: "parent",
		},
		{name: "cpuset.mems", option: "CpusetMems", parse: (*Settings).parseCPUSetMems, defaultValue: "false"},
		{name: "stop-signal", option: "StopSignal", parse: (*Settings).parseStopSignal, defaultValue: "SIGTERM"},
		{
			name: "stop-timeout", option: "StopTimeout", parse: (*Settings).parseStopTimeout,
			defaultValue: defaultGrace.String(),
		},
		{name: "host-rootfs", option: "HostRootfs", parse: setHostRootfs, unsafe: true, safeValue: hostRootfsOff},
		{name: "host-rootfs.mask", option: "HostRootfsMask", parse: setHostRootfsMask, unsafe: true},
		{name: "host-rootfs.user", option: "HostRootfsUser", parse: (*Settings).parseHostRootfsUser, optionRestricts: true},
		{name: "host-rootfs.task-dir", option: "HostRootfsTaskDir", parse: (*Settings).parseTaskDir},
		{name: "pid-file", option: "PidFile", parse: (*Settings).parsePidFile, unsafe: true},
		{name: "notify", option: "Notify", parse: (*Settings).parseNotify, defaultValue: "false"},
		{
			name: "notify-timeout", option: "NotifyTimeout", parse: (*Settings).parseNotifyTimeout,
			defaultValue: defaultNotifyTimeout.String(),
		},
		{name: "init", option: "Init", parse: (*Settings).parseInit, defaultValue: "false"},
		{name: "exec-limits", option: "ExecLimits", parse: (*Settings).parseExecLimits},
		// Root writes the file.
		{name: "verdict-file", option: "VerdictFile", parse: (*Settings).parseVerdictFile, unsafe: true},
		// Root binds the sockets: ports in the host's network, paths on volumes.
		{name: "listen", option: "Listen", parse: (*Settings).parseListen, unsafe: true, safeValue: listenNone},
		{name: "shm-size"}, // pod.ShmSizeAnnotation
	}
}

// Names returns the annotations of a container without Prefix, in alphabetical order.
func Names() []string {
	return sortedNames(func(a annotation) bool { return a.parse != nil })
}

// UnsafeAnnotations returns those that a container may have only if the runtime option AllowUnsafeAnnotations names
// them.
func UnsafeAnnotations() []string {
	keys := unsafeNames()
	for i, name := range keys {
		keys[i] = Prefix + name
	}
	return keys
}

func unsafeNames() []string {
	return sortedNames(func(a annotation) bool { return a.unsafe || a.optionRestricts })
}

func sortedNames(keep func(annotation) bool) []string {
	var names []string
	for _, a := range table() {
		if keep(a) {
			names = append(names, a.name)
		}
	}
	slices.Sort(names)
	return names
}

// CheckAnnotations refuses those that nobody reads, since a misspelt one must not be silently ignored. What is read
// from a pod or from a container is allowed on both: CRI passes annotations of a pod on to its containers.
func CheckAnnotations(annotations map[string]string) error {
	var known []string
	for _, a := range table() {
		known = append(known, Prefix+a.name)
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, Prefix) && !slices.Contains(known, key) {
			return fmt.Errorf("annotations: %q: unknown; known with this prefix are %s: %w",
				key, strings.Join(known, ", "), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// checkUnsafe refuses unsafe annotations that are not allowed. The author of a container's configuration need not be
// the one who configures the machine: that of a pod is written by those who may create pods.
func checkUnsafe(annotations map[string]string, o options.Options) error {
	allowed := o.AllowUnsafeAnnotations
	unsafe := slices.Concat(unsafeNames(), libcontainerAnnotations)
	for _, name := range allowed {
		if !slices.Contains(unsafe, name) {
			return fmt.Errorf("%s: AllowUnsafeAnnotations: %q: must be one of %s: %w",
				o.Origin(), name, strings.Join(unsafe, ", "), errdefs.ErrInvalidArgument)
		}
	}
	for _, a := range table() {
		value, ok := annotations[Prefix+a.name]
		unsafe := a.unsafe || a.optionRestricts && a.optionOf(o).IsSet()
		safe := a.safeValue != "" && value == a.safeValue
		if !unsafe || !ok || safe || slices.Contains(allowed, a.name) {
			continue
		}
		return denied(Prefix+a.name, value, a.name)
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		read, _, _ := strings.Cut(key, "=") // libcontainer keeps KEY=VALUE, and reads up to the first =
		for _, name := range libcontainerAnnotations {
			is := read == name || strings.HasPrefix(read, name+".") && !slices.Contains(harmlessProperties, read[len(name)+1:])
			if is && !slices.Contains(allowed, name) {
				return denied(key, annotations[key], name)
			}
		}
	}
	return nil
}

// libcontainerAnnotations are annotations that libcontainer reads: properties of the container's unit of systemd, with
// which the machine can be powered off when the container ends (CVE-2024-3154), and a file with options of CRIU, which
// is run as root. Annotations that begin with such a name and a dot are meant too.
var libcontainerAnnotations = []string{"org.criu.config", "org.systemd.property"}

// harmlessProperties of a unit change nothing but the unit. Clients set them.
var harmlessProperties = []string{"CollectMode", "Delegate", "KillSignal", "TimeoutStopUSec"}

func denied(key, value, name string) error {
	return fmt.Errorf("config.json: annotations: %s %q: gives the container access to the host or to other containers; "+
		"to allow it, set the runtime option AllowUnsafeAnnotations = [%q]: %w",
		key, value, name, errdefs.ErrPermissionDenied)
}
