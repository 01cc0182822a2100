// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/options"
)

// Value is the text of an annotation or, without it, of a runtime option. The zero value is that of neither.
type Value struct {
	Key          string // which of them, for messages
	Text         string
	ByAnnotation bool
}

// Values are the settings of one container, unchecked.
type Values struct {
	byName map[string]Value
	id     *strings.Replacer
}

func (t Table) values(annotations map[string]string, o options.Options, namespace, containerID string) Values {
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

// Refuse returns the error for a value that is not what is allowed.
func (v Value) Refuse(allowed string) error {
	return fmt.Errorf("%s %q: must be %s: %w", v.Key, v.Text, allowed, errdefs.ErrInvalidArgument)
}

// Needs returns the error for a value that has no effect without another setting.
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
