// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"testing"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/options"
)

func TestList_NamesTheOrigin(t *testing.T) {
	spec := annotated("stop-signal", "SIGQUIT", "on", "false")
	o := options.Options{Settings: map[string]string{"StopSignal": "SIGHUP", "On": "true", "StopTimeout": "3s"}, SystemdCgroup: true}
	fromFile := o
	fromFile.File = "/etc/x.toml"
	for _, tc := range []struct {
		o    options.Options
		want []inspect.Setting
	}{
		{o, []inspect.Setting{
			{Name: "stop-signal", Option: "StopSignal", Value: "SIGQUIT", Origin: inspect.FromAnnotation},
			{Name: "on", Option: "On", Value: "false", Origin: inspect.FromAnnotation},
			{Name: "stop-timeout", Option: "StopTimeout", Value: "3s", Origin: inspect.FromOption},
			{Name: "cpuset.mems", Option: "CpusetMems", Value: "false", Origin: inspect.FromDefault},
			{Name: "host", Option: "Host", Origin: inspect.FromDefault},
			{Name: "SystemdCgroup", Value: "true", Origin: inspect.FromOption},
		}},
		{fromFile, []inspect.Setting{
			{Name: "stop-timeout", Option: "StopTimeout", Value: "3s", Origin: "/etc/x.toml"},
			{Name: "SystemdCgroup", Value: "true", Origin: "/etc/x.toml"},
		}},
		{options.Options{}, []inspect.Setting{
			{Name: "stop-timeout", Option: "StopTimeout", Value: "10s", Origin: inspect.FromDefault},
			{Name: "stop-signal", Option: "StopSignal", Value: "SIGQUIT", Origin: inspect.FromAnnotation},
		}},
	} {
		got := map[string]inspect.Setting{}
		for _, s := range table.List(spec.Annotations, tc.o) {
			if _, twice := got[s.Name]; twice {
				t.Errorf("%s is listed twice", s.Name)
			}
			got[s.Name] = s
		}
		for _, want := range tc.want {
			if got[want.Name] != want {
				t.Errorf("%+v: got %+v, want %+v", tc.o, got[want.Name], want)
			}
		}
		if _, ok := got["File"]; ok {
			t.Error("File is listed, which is an origin")
		}
		if _, ok := got["SystemdCgroup"]; ok && !tc.o.SystemdCgroup {
			t.Error("an option is listed that nobody has set, and that no annotation can set")
		}
	}
}

// What Parse does without a setting is what List says.
func TestList_StandardsAreThoseOfParse(t *testing.T) {
	s, err := table.Parse(annotated(), options.Options{}, "ns", "c1")
	must(t, err)
	for _, setting := range table.List(nil, options.Options{}) {
		want, ok := map[string]string{
			"stop-signal": "SIGTERM", "stop-timeout": s.Stop.Grace.String(),
		}[setting.Name]
		if ok && setting.Value != want {
			t.Errorf("%s = %q, want %q", setting.Name, setting.Value, want)
		}
	}
}
