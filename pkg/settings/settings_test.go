// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

// table has the settings of the core, and some like those of an extension.
var table = append(Core(),
	Setting{Name: "on", Option: "On", Bool: true, Default: "false"},
	Setting{Name: "host", Option: "Host", Unsafe: true, SafeValue: "off"},
	Setting{Name: "host.user", Option: "HostUser", OptionRestricts: true},
)

// annotated is a configuration with annotations: pairs of a name without the prefix and a value.
func annotated(pairs ...string) *specs.Spec {
	spec := &specs.Spec{Annotations: map[string]string{}}
	for pair := range slices.Chunk(pairs, 2) {
		spec.Annotations[Prefix+pair[0]] = pair[1]
	}
	return spec
}

// allowing are the options, and all annotations are allowed.
func allowing(o options.Options) options.Options {
	o.AllowUnsafeAnnotations = table.Unsafe()
	return o
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantInvalid(t *testing.T, err error, text ...string) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("error = %v, want an invalid argument", err)
	}
	for _, w := range text {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error = %v, which does not say %q", err, w)
		}
	}
}

func TestParse_Stop(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spec  *specs.Spec
		o     options.Options
		want  process.Stop
		asked bool
	}{
		{"nothing is asked", annotated(), options.Options{}, process.Stop{Signal: unix.SIGTERM, Grace: 10 * time.Second}, false},
		{"a signal by annotation", annotated("stop-signal", "SIGQUIT"), options.Options{}, process.Stop{Signal: unix.SIGQUIT, Grace: 10 * time.Second}, true},
		{"a signal without SIG", annotated("stop-signal", "usr1"), options.Options{}, process.Stop{Signal: unix.SIGUSR1, Grace: 10 * time.Second}, true},
		{"a signal by number", annotated("stop-signal", "37"), options.Options{}, process.Stop{Signal: 37, Grace: 10 * time.Second}, true},
		{"systemd's signal", annotated("stop-signal", "SIGRTMIN+3"), options.Options{}, process.Stop{Signal: 37, Grace: 10 * time.Second}, true},
		{"the last signal", annotated("stop-signal", "RTMAX"), options.Options{}, process.Stop{Signal: 64, Grace: 10 * time.Second}, true},
		{"a timeout by annotation", annotated("stop-timeout", "1m30s"), options.Options{}, process.Stop{Signal: unix.SIGTERM, Grace: 90 * time.Second}, true},
		{"the longest timeout", annotated("stop-timeout", "86400"), options.Options{}, process.Stop{Signal: unix.SIGTERM, Grace: 24 * time.Hour}, true},
		{"a timeout of none", annotated("stop-timeout", "0"), options.Options{}, process.Stop{Signal: unix.SIGTERM}, true},
		{"both by option", annotated(), options.Options{Settings: map[string]string{"StopSignal": "HUP", "StopTimeout": "7"}}, process.Stop{Signal: unix.SIGHUP, Grace: 7 * time.Second}, true},
		{
			"the annotations go before the options", annotated("stop-signal", "INT", "stop-timeout", "5ms"),
			options.Options{Settings: map[string]string{"StopSignal": "HUP", "StopTimeout": "7"}},
			process.Stop{Signal: unix.SIGINT, Grace: 5 * time.Millisecond},
			true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := table.Parse(tc.spec, tc.o, "ns", "c1")
			if err != nil || got.Stop != tc.want || got.StopIsSet != tc.asked {
				t.Errorf("Stop = %v, %t, %v, want %v, %t", got.Stop, got.StopIsSet, err, tc.want, tc.asked)
			}
		})
	}
}

func TestParse_RefusesStop(t *testing.T) {
	const key = "config.json: annotations: " + Prefix
	for _, signal := range []string{"", "SIGNONE", "SIGSIGTERM", "0", "-1", "65", "RTMIN-1", "RTMAX+1", "RTMIN3", "RTMIN+x", "1.5"} {
		_, err := table.Parse(annotated("stop-signal", signal), options.Options{}, "ns", "c1")
		wantInvalid(t, err, key+"stop-signal", strconv.Quote(signal))
	}
	for _, timeout := range []string{"", "-1s", "-1", "soon", "10 s", "99999999999", "86401", "24h0m1s", "4294967295"} {
		_, err := table.Parse(annotated("stop-timeout", timeout), options.Options{}, "ns", "c1")
		wantInvalid(t, err, key+"stop-timeout", strconv.Quote(timeout), "from 0 to 24h")
	}
	_, err := table.Parse(annotated(), options.Options{Settings: map[string]string{"StopSignal": "x"}}, "ns", "c1")
	wantInvalid(t, err, "runtime options: StopSignal", `"x"`, "SIGTERM", "1 to 64")
	_, err = table.Parse(annotated(), options.Options{Settings: map[string]string{"StopTimeout": "x"}}, "ns", "c1")
	wantInvalid(t, err, "runtime options: StopTimeout", `"x"`, "10s")
}

func TestParse_Limits(t *testing.T) {
	some := &limit.Limits{WallTime: time.Second}
	for _, tc := range []struct {
		name string
		spec *specs.Spec
		o    options.Options
		want *limit.Limits
		file string
	}{
		{"nothing", annotated(), options.Options{}, nil, ""},
		{"an annotation", annotated("exec-limits", "wall-time=1s"), options.Options{}, some, ""},
		{"options", annotated(), options.Options{Settings: map[string]string{"ExecLimits": "wall-time=1s", "VerdictFile": "/v/{id}:{exec}"}}, some, "/v/c1:{exec}"},
		{"an option for others", annotated(), options.Options{Settings: map[string]string{"VerdictFile": "/v/{id}:{exec}"}}, nil, ""},
		{"annotations against the options", annotated("exec-limits", "off"), options.Options{Settings: map[string]string{"ExecLimits": "on"}}, nil, ""},
		{"a file by annotation", annotated("exec-limits", "on", "verdict-file", "/v/{namespace}/{exec}"), options.Options{}, &limit.Limits{}, "/v/ns/{exec}"},
	} {
		got, err := table.Parse(tc.spec, allowing(tc.o), "ns", "c1")
		if err != nil || !reflect.DeepEqual(got.ExecLimits, tc.want) || got.VerdictFile.Text != tc.file {
			t.Errorf("%s: %v, %q, %v", tc.name, got.ExecLimits, got.VerdictFile.Text, err)
		}
	}
	for _, tc := range []struct {
		spec *specs.Spec
		o    options.Options
		want string
	}{
		{annotated("verdict-file", "/v/{exec}"), options.Options{}, "has no effect without " + Prefix + "exec-limits"},
		{annotated("exec-limits", "on", "verdict-file", "v/{exec}"), options.Options{}, "absolute path"},
		{annotated("exec-limits", "on", "verdict-file", "/{exec}/v"), options.Options{}, "{exec} in the name of the file"},
		{annotated("exec-limits", "on"), options.Options{Settings: map[string]string{"VerdictFile": "/v/{exec}"}}, "{id}"},
		{annotated("exec-limits", ""), options.Options{}, `exec-limits "": must be off, on, or a list`},
		{annotated(), options.Options{Settings: map[string]string{"ExecLimits": "pids=0"}}, `runtime options: ExecLimits: pids "0"`},
	} {
		_, err := table.Parse(tc.spec, allowing(tc.o), "ns", "c1")
		wantInvalid(t, err, tc.want)
	}
}

func TestParse_CPUSet(t *testing.T) {
	all := options.Options{Settings: map[string]string{"CpusetSource": "/all", "CpusetMems": "true"}}
	for _, tc := range []struct {
		name   string
		spec   *specs.Spec
		o      options.Options
		source string
		mems   bool
	}{
		{"nothing", annotated(), options.Options{}, "", false},
		{"the option for memory nodes alone", annotated(), options.Options{Settings: map[string]string{"CpusetMems": "true"}}, "", true},
		{"the options", annotated(), all, "/all", true},
		{"an annotation", annotated("cpuset.source", "parent"), options.Options{}, "parent", false},
		{"annotations and options", annotated("cpuset.source", "/a", "cpuset.mems", "false"), all, "/a", false},
		{"each key for itself", annotated("cpuset.mems", "false"), all, "/all", false},
		{"memory nodes by annotation", annotated("cpuset.source", "/a", "cpuset.mems", "true"), options.Options{}, "/a", true},
		{"no memory nodes of no source", annotated("cpuset.mems", "false"), options.Options{}, "", false},
	} {
		got, err := table.Parse(tc.spec, allowing(tc.o), "ns", "c1")
		if err != nil || got.CPUSetSource.Text != tc.source || got.CPUSetMems != tc.mems {
			t.Errorf("%s: %q, %t, %v, want %q, %t", tc.name, got.CPUSetSource.Text, got.CPUSetMems, err, tc.source, tc.mems)
		}
	}
}
