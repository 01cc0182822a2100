// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// setting is what is asked for by an annotation or by a runtime option. The
// zero value is not asked for.
type setting struct {
	key   string // as an error names it
	value string
}

// settingOf reads a setting: the annotation goes before the option, whose value
// is empty when it is not given. An annotation without a value asks for nothing
// that could be done.
func settingOf(spec *specs.Spec, annotation, option, value string) (setting, error) {
	if text, ok := spec.Annotations[annotation]; ok {
		s := setting{key: specFile + ": annotations: " + annotation, value: text}
		if text == "" {
			return s, s.refuse("not be empty")
		}
		return s, nil
	}
	if value == "" {
		return setting{}, nil
	}
	return setting{key: "runtime options: " + option, value: value}, nil
}

func (s setting) asked() bool { return s.key != "" }

// refuse is the error of a value that is not allowed; must says what is.
func (s setting) refuse(must string, args ...any) error {
	return fmt.Errorf("%s %q: must %s: %w", s.key, s.value, fmt.Sprintf(must, args...), errdefs.ErrInvalidArgument)
}

// duration reads a time that is not negative: Go's form, or a number of seconds
// as `ctr` and Kubernetes have it.
func (s setting) duration() (time.Duration, error) {
	d, err := time.ParseDuration(s.value)
	if err != nil {
		var seconds uint64
		seconds, err = strconv.ParseUint(s.value, 10, 32)
		d = time.Duration(seconds) * time.Second
	}
	if err != nil || d < 0 {
		return 0, s.refuse("be a time such as 10s or 1m30s, or a number of seconds, and not negative")
	}
	return d, nil
}
