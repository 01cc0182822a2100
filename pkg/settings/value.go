// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

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
	return a.optionOf(o)
}

func (a annotation) optionOf(o options.Options) Value {
	return Value{Key: o.Origin() + ": " + a.option, Text: fmt.Sprint(reflect.ValueOf(o).FieldByName(a.option))}
}

func annotationKey(name string) string { return "config.json: annotations: " + Prefix + name }

// IsSet reports whether there is an annotation, or an option that is not empty.
func (v Value) IsSet() bool { return v.ByAnnotation || v.Text != "" }

// Refuse returns the error for a value that is not what is allowed.
func (v Value) Refuse(allowed string) error {
	return fmt.Errorf("%s %q: must be %s: %w", v.Key, v.Text, allowed, errdefs.ErrInvalidArgument)
}

// needs returns the error for a value that has no effect without another.
func (v Value) needs(annotation, option string) error {
	other := option
	if v.ByAnnotation {
		other = Prefix + annotation
	}
	return fmt.Errorf("%s %q: has no effect without %s: set that as well, or remove this one: %w",
		v.Key, v.Text, other, errdefs.ErrInvalidArgument)
}

func (v Value) bool() (bool, error) {
	if v.Text != "true" && v.Text != "false" {
		return false, v.Refuse("true or false")
	}
	return v.Text == "true", nil
}

// grace reads a time that may be 0: Go's form, or a number of seconds as in `ctr` and Kubernetes.
func (v Value) grace() (time.Duration, error) {
	d, err := time.ParseDuration(v.Text)
	if err != nil {
		var seconds uint64
		seconds, err = strconv.ParseUint(v.Text, 10, 32)
		d = time.Duration(seconds) * time.Second
	}
	if err != nil || d < 0 || d > MaxTimeout {
		return 0, v.Refuse("a time such as 10s or 1m30s, or a number of seconds, from 0 to 24h")
	}
	return d, nil
}
