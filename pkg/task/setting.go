// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// setting is what is asked for by an annotation or, without it, by a runtime
// option.
type setting struct {
	key  string // which asks, for messages
	text string
	here bool // by an annotation
}

func settingOf(spec *specs.Spec, annotation, option, value string) setting {
	if text, ok := spec.Annotations[annotation]; ok {
		return setting{specFile + ": annotations: " + annotation, text, true}
	}
	return setting{"runtime options: " + option, value, false}
}

// switchOf is a setting that is on or off.
func switchOf(spec *specs.Spec, annotation, option string, value bool) (on bool, s setting, err error) {
	s = settingOf(spec, annotation, option, fmt.Sprint(value))
	if s.text != "true" && s.text != "false" {
		return false, s, s.refuse("true or false")
	}
	return s.text == "true", s, nil
}

// longestTimeout bounds what is a mistake more probably than a wish.
const longestTimeout = 24 * time.Hour

// timeoutOf is a time, or 0 when none is asked for.
func timeoutOf(spec *specs.Spec, annotation, option, value string) (time.Duration, setting, error) {
	s := settingOf(spec, annotation, option, value)
	if s.text == "" && !s.here {
		return 0, s, nil
	}
	d, err := time.ParseDuration(s.text)
	if err != nil || d <= 0 || d > longestTimeout {
		return 0, s, s.refuse(`a time such as 500ms, 90s or 1m30s, more than 0 and at most 24h`)
	}
	return d, s, nil
}

// refuse is the error that names key, value and what is allowed.
func (s setting) refuse(allowed string) error {
	return fmt.Errorf("%s %q: must be %s: %w", s.key, s.text, allowed, errdefs.ErrInvalidArgument)
}

// needs is the error about a setting that would have no effect.
func (s setting) needs(annotation, option string) error {
	other := option
	if s.here {
		other = annotation
	}
	return fmt.Errorf("%s %q: needs %s: %w", s.key, s.text, other, errdefs.ErrInvalidArgument)
}
