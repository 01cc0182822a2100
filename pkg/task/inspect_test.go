// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"slices"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/settings"
)

func TestInspect_TellsOfSettingsAndReadiness(t *testing.T) {
	s := newManager(t, newRuntime())
	o := allowing(options.Options{Settings: map[string]string{"StopTimeout": "3s"}})
	r := CreateRequest{ID: "c1", Bundle: testx.NewBundle(t, annotated("notify", "true")), Options: o}
	c, err := s.Create(t.Context(), r)
	testx.Must(t, err)
	got := c.Inspect(inspect.MaxExecs)
	if got.ID != "c1" || got.State != "created" || got.Launch.Init != inspect.ByLauncher || got.CPUSet != nil {
		t.Errorf("container = %+v", got)
	}
	if got.Notify == nil || *got.Notify != (inspect.Notify{}) {
		t.Errorf("readiness = %+v, want that it told nothing", got.Notify)
	}
	for _, want := range []inspect.Setting{
		{Name: "notify", Option: "Notify", Value: "true", Origin: inspect.FromAnnotation},
		{Name: "stop-timeout", Option: "StopTimeout", Value: "3s", Origin: inspect.FromOption},
	} {
		if !slices.Contains(got.Settings, want) {
			t.Errorf("settings = %+v, want %+v among them", got.Settings, want)
		}
	}
	if got.Annotations[settings.Prefix+"notify"] != "true" {
		t.Errorf("annotations = %v", got.Annotations)
	}
	remove(t, s, "c1")
}
