// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"testing"
	"time"

	"sandbox.internal/shim/pkg/options"
)

func TestCreateRefusesExecSettings(t *testing.T) {
	const key = "config.json: annotations: io.containerd.sandbox.v1/"
	wantRefused(t, map[string]asked{
		key + `exec-cgroup "1": must be true or false`:           {annotations: map[string]string{"exec-cgroup": "1"}},
		key + `exec-timeout "x": must be a time such as`:         {annotations: map[string]string{"exec-cgroup": "true", "exec-timeout": "x"}},
		key + `exec-timeout "5s": needs ` + annotationExecCgroup: {annotations: map[string]string{"exec-timeout": "5s"}},
		`runtime options: ExecTimeout "5s": needs ExecCgroup`:    {options: options.Options{ExecTimeout: "5s"}},
	})
}

func TestExecSettings(t *testing.T) {
	for _, tc := range []struct {
		name string
		asked
		on      bool
		timeout time.Duration
	}{
		{"nothing", asked{}, false, 0},
		{"an annotation", asked{annotations: map[string]string{"exec-cgroup": "true"}}, true, 0},
		{"options", asked{options: options.Options{ExecCgroup: true, ExecTimeout: "5s"}}, true, 5 * time.Second},
		{"annotations against the options", asked{map[string]string{"exec-cgroup": "false"}, options.Options{ExecCgroup: true, ExecTimeout: "5s"}}, false, 0},
		{"each key for itself", asked{map[string]string{"exec-timeout": "1s"}, options.Options{ExecCgroup: true}}, true, time.Second},
	} {
		engine := &fakeEngine{}
		s := newManager(t, engine)
		_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, tc.spec()), Options: tc.options})
		must(t, err)
		if got := engine.made[0].Options; got.ExecCgroup != tc.on || got.ExecTimeout != tc.timeout {
			t.Errorf("%s: the engine is asked for %t, %v, want %t, %v", tc.name, got.ExecCgroup, got.ExecTimeout, tc.on, tc.timeout)
		}
		_, err = s.Delete(t.Context(), "c1", "")
		must(t, err)
	}
}
