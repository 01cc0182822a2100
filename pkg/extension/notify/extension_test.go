// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/settings"
)

// timeoutOf returns the time for READY=1 of a container with annotations, pairs of a name and a value; 0 for none.
func timeoutOf(t *testing.T, of map[string]string, pairs ...string) (time.Duration, error) {
	t.Helper()
	spec := &specs.Spec{Annotations: map[string]string{}}
	for pair := range slices.Chunk(pairs, 2) {
		spec.Annotations[settings.Prefix+pair[0]] = pair[1]
	}
	set, err := extension.List{Extension()}.Settings().Parse(spec, options.Options{Settings: of}, "ns", "c1")
	if err != nil {
		t.Fatal(err)
	}
	part, err := newPart(set.Values)
	if part == nil {
		return 0, err
	}
	return part.Hook.(*hook).timeout, err
}

func TestExtension_Timeout(t *testing.T) {
	all := map[string]string{"Notify": "true", "NotifyTimeout": "5s"}
	for _, tc := range []struct {
		name  string
		o     map[string]string
		pairs []string
		want  time.Duration
	}{
		{"nothing", nil, nil, 0},
		{"an annotation", nil, []string{"notify", "true"}, 90 * time.Second},
		{"an annotation with a time", nil, []string{"notify", "true", "notify-timeout", "1m30s"}, 90 * time.Second},
		{"options", all, nil, 5 * time.Second},
		{"each key for itself", all, []string{"notify-timeout", "7s"}, 7 * time.Second},
		{"an annotation against the options", all, []string{"notify", "false"}, 0},
	} {
		if got, err := timeoutOf(t, tc.o, tc.pairs...); err != nil || got != tc.want {
			t.Errorf("%s: %v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}

func TestExtension_Refuses(t *testing.T) {
	const key = "config.json: annotations: " + settings.Prefix
	const form = "must be a time such as 500ms, 90s or 1m30s, more than 0 and at most 24h"
	for want, tc := range map[string]struct {
		o     map[string]string
		pairs []string
	}{
		key + `notify "yes": must be true or false`:                                      {nil, []string{"notify", "yes"}},
		key + `notify "": must be true or false`:                                         {nil, []string{"notify", ""}},
		key + `notify-timeout "": ` + form:                                               {nil, []string{"notify", "true", "notify-timeout", ""}},
		key + `notify-timeout "0s": ` + form:                                             {nil, []string{"notify", "true", "notify-timeout", "0s"}},
		key + `notify-timeout "-1s": ` + form:                                            {nil, []string{"notify", "true", "notify-timeout", "-1s"}},
		key + `notify-timeout "90": ` + form:                                             {nil, []string{"notify", "true", "notify-timeout", "90"}},
		key + `notify-timeout "24h1s": ` + form:                                          {nil, []string{"notify", "true", "notify-timeout", "24h1s"}},
		key + `notify-timeout "5s": has no effect without ` + settings.Prefix + "notify": {nil, []string{"notify-timeout", "5s"}},
		`runtime options: NotifyTimeout "x": ` + form:                                    {map[string]string{"Notify": "true", "NotifyTimeout": "x"}, nil},
		`runtime options: NotifyTimeout "5s": has no effect without Notify`:              {map[string]string{"NotifyTimeout": "5s"}, nil},
	} {
		_, err := timeoutOf(t, tc.o, tc.pairs...)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
}
