// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/options"
)

// Value is the text of an annotation or, without it, of a runtime option.
type Value struct {
	Key          string // which of them, for messages
	Text         string
	ByAnnotation bool
}

func (a annotation) valueOf(spec *specs.Spec, o options.Options) Value {
	if text, ok := spec.Annotations[Prefix+a.name]; ok {
		return Value{Key: annotationKey(a.name), Text: text, ByAnnotation: true}
	}
	return Value{Key: "runtime options: " + a.option, Text: fmt.Sprint(reflect.ValueOf(o).FieldByName(a.option))}
}

func annotationKey(name string) string { return "config.json: annotations: " + Prefix + name }

// IsSet reports whether there is the annotation or an option that is not empty.
func (v Value) IsSet() bool { return v.ByAnnotation || v.Text != "" }

// refuse is the error that names key, value and what is allowed.
func (v Value) refuse(allowed string) error {
	return fmt.Errorf("%s %q: must be %s: %w", v.Key, v.Text, allowed, errdefs.ErrInvalidArgument)
}

// needs is the error about a value that has no effect without another.
func (v Value) needs(annotation, option string) error {
	other := option
	if v.ByAnnotation {
		other = Prefix + annotation
	}
	return fmt.Errorf("%s %q: needs %s: %w", v.Key, v.Text, other, errdefs.ErrInvalidArgument)
}

// uselessWithout is the error about v while other is off. An option has no effect in a container whose annotation
// switches other off, which is no error.
func (v Value) uselessWithout(other Value, annotation, option string) error {
	if !v.ByAnnotation && other.ByAnnotation {
		return nil
	}
	return v.needs(annotation, option)
}

func (v Value) bool() (bool, error) {
	if v.Text != "true" && v.Text != "false" {
		return false, v.refuse("true or false")
	}
	return v.Text == "true", nil
}

// timeout is 0 when v is not set.
func (v Value) timeout() (time.Duration, error) {
	if !v.IsSet() {
		return 0, nil
	}
	d, err := time.ParseDuration(v.Text)
	if err != nil || d <= 0 || d > MaxTimeout {
		return 0, v.refuse(`a time such as 500ms, 90s or 1m30s, more than 0 and at most 24h`)
	}
	return d, nil
}

// grace reads a time that may be 0: Go's form, or a number of seconds as `ctr` and Kubernetes have it.
func (v Value) grace() (time.Duration, error) {
	d, err := time.ParseDuration(v.Text)
	if err != nil {
		var seconds uint64
		seconds, err = strconv.ParseUint(v.Text, 10, 32)
		d = time.Duration(seconds) * time.Second
	}
	if err != nil || d < 0 || d > MaxTimeout {
		return 0, v.refuse("a time such as 10s or 1m30s, or a number of seconds, from 0 to 24h")
	}
	return d, nil
}

// Real-time signals as programs number them: glibc and musl keep the first two of the kernel's (signal(7)).
const (
	minRealTime = 34
	maxSignal   = 64
)

// parseSignal reads the name of a signal, with or without SIG, or its number. It is 0 for what is neither.
func parseSignal(text string) syscall.Signal {
	if n, err := strconv.ParseUint(text, 10, 8); err == nil {
		return signalFrom(int(n), 1)
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	for prefix, base := range map[string]int{"RTMIN": minRealTime, "RTMAX": maxSignal} {
		offset, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if offset == "" {
			return syscall.Signal(base)
		}
		n, err := strconv.ParseInt(offset, 10, 8)
		if err != nil || offset[0] != '+' && offset[0] != '-' {
			return 0
		}
		return signalFrom(base+int(n), minRealTime)
	}
	return unix.SignalNum("SIG" + name)
}

// signalFrom is 0 for a number below least or above the last signal.
func signalFrom(n, least int) syscall.Signal {
	if n < least || n > maxSignal {
		return 0
	}
	return syscall.Signal(n)
}
