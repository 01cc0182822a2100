// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

// table has the settings of the core, and some like those of an extension.
var table = append(Core(),
	Setting{Name: "on", Option: "On", Bool: true, Default: "false"},
	Setting{Name: "host", Option: "Host", Unsafe: true, SafeValue: "off"},
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
		testx.WantInvalid(t, err, key+"stop-signal", strconv.Quote(signal))
	}
	for _, timeout := range []string{"", "-1s", "-1", "soon", "10 s", "99999999999", "86401", "24h0m1s", "4294967295"} {
		_, err := table.Parse(annotated("stop-timeout", timeout), options.Options{}, "ns", "c1")
		testx.WantInvalid(t, err, key+"stop-timeout", strconv.Quote(timeout), "from 0 to 24h")
	}
	_, err := table.Parse(annotated(), options.Options{Settings: map[string]string{"StopSignal": "x"}}, "ns", "c1")
	testx.WantInvalid(t, err, "runtime options: StopSignal", `"x"`, "SIGTERM", "1 to 64")
	_, err = table.Parse(annotated(), options.Options{Settings: map[string]string{"StopTimeout": "x"}}, "ns", "c1")
	testx.WantInvalid(t, err, "runtime options: StopTimeout", `"x"`, "10s")
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
		testx.WantInvalid(t, err, tc.want)
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

func TestParse_CPUSetSourceIsAList(t *testing.T) {
	const alloc = "0f5ad3c0-1234-5678-9abc-def012345678"
	for _, tc := range []struct {
		source, id string
		want       []string
	}{
		{"parent", "c1", []string{"parent"}},
		{"a/share.slice , /b,parent", "c1", []string{"a/share.slice", "/b", "parent"}},
		{"{namespace}/{id}.scope", "c1", []string{"ns/c1.scope"}},
		{"r/{alloc}.{task}.scope,share", "web-server-" + alloc, []string{"r/" + alloc + ".web-server.scope", "share"}},
		{"r/{alloc}.{task}.scope,share", alloc + ".web", []string{"r/" + alloc + ".web.scope", "share"}},
		{"r/{alloc}.{task}.scope,share", alloc + ".web.server.scope", []string{"r/" + alloc + ".web.server.scope", "share"}},
		{"{alloc},share", "web", []string{"share"}},
		{"{task},share", "web-" + alloc[1:], []string{"share"}},
		{"{alloc}", "web", nil},
	} {
		got, err := table.Parse(annotated(), options.Options{Settings: map[string]string{"CpusetSource": tc.source}}, "ns", tc.id)
		if err != nil || !got.CPUSetSource.IsSet() || !slices.Equal(got.CPUSetSources, tc.want) {
			t.Errorf("table.Parse(%q) of %q = %q, %v, want %q", tc.source, tc.id, got.CPUSetSources, err, tc.want)
		}
	}
	for _, source := range []string{"", ",", "a,", "a,,b", " ", "{job}", "a/{id", "id}"} {
		_, err := table.Parse(annotated("cpuset.source", source), allowing(options.Options{}), "ns", "c1")
		testx.WantInvalid(t, err, "config.json: annotations: "+Prefix+"cpuset.source", "several with commas", "{alloc}")
	}
	_, err := table.Parse(annotated(), options.Options{Settings: map[string]string{"CpusetSource": "a,"}, File: "/etc/x"}, "ns", "c1")
	testx.WantInvalid(t, err, `/etc/x: CpusetSource "a,": must be parent`)
}

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

// allowingOnly are options that allow these annotations.
func allowingOnly(names ...string) options.Options {
	return options.Options{AllowUnsafeAnnotations: names}
}

// Whoever may create pods is not to be root of the node by that, unless the node's configuration says so.
func TestUnsafeAnnotations_NeedAnOptionThatAllowsThem(t *testing.T) {
	for name, value := range map[string]string{
		"host": "/root", "cpuset.source": "/other", "verdict-file": "/v/{id}:{exec}",
	} {
		others := slices.DeleteFunc(table.Unsafe(), func(n string) bool { return n == name })
		o := options.Options{Settings: map[string]string{"Host": "off"}, AllowUnsafeAnnotations: others}
		_, err := table.Parse(annotated(name, value), o, "ns", "c1")
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("Parse with %s = %v, want that permission is denied", name, err)
		}
		for _, want := range []string{Prefix + name, strconv.Quote(value), fmt.Sprintf("AllowUnsafeAnnotations = [%q]", name)} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error = %v, which does not say %q", err, want)
			}
		}
		if err := table.checkUnsafe(annotated(name, value).Annotations, allowingOnly(append(others, name)...)); err != nil {
			t.Errorf("with %s allowed: %v", name, err)
		}
	}
}

// CVE-2024-3154: properties of a unit of systemd by an annotation, and what else libcontainer reads.
func TestUnsafeAnnotations_OfLibcontainerNeedAnOptionToo(t *testing.T) {
	for key, name := range map[string]string{
		"org.systemd.property.SuccessAction": "org.systemd.property", "org.systemd.property.": "org.systemd.property",
		"org.criu.config": "org.criu.config",
		// libcontainer keeps KEY=VALUE, in which it looks for org.criu.config=.
		"org.criu.config=/var/lib/x/criu.conf#": "org.criu.config",
	} {
		spec := annotated()
		spec.Annotations[key] = "'poweroff-force'"
		_, err := table.Parse(spec, options.Options{AllowUnsafeAnnotations: table.Unsafe()}, "ns", "c1")
		if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), key) {
			t.Errorf("Parse with %s = %v, want that permission is denied", key, err)
		}
		if _, err := table.Parse(spec, options.Options{AllowUnsafeAnnotations: []string{name}}, "ns", "c1"); err != nil {
			t.Errorf("Parse with %s, which is allowed: %v", key, err)
		}
	}
	spec := annotated()
	spec.Annotations["org.systemd.properties"] = "x"           // nobody reads it
	spec.Annotations["org.systemd.property.Delegate"] = "true" // clients set it
	if _, err := table.Parse(spec, options.Options{}, "ns", "c1"); err != nil {
		t.Errorf("Parse with what is harmless: %v", err)
	}
}

// They take something away from a container, or give it what is its pod's.
func TestUnsafeAnnotations_AreAllowedWhereTheyDoNoHarm(t *testing.T) {
	spec := annotated("host", "off", "cpuset.source", "parent", "cpuset.mems", "true")
	if err := table.checkUnsafe(spec.Annotations, options.Options{}); err != nil {
		t.Error(err)
	}
}

func TestAllowUnsafeAnnotations_NamesWhatThereIs(t *testing.T) {
	for _, name := range []string{"hots", "on", Prefix + "host", ""} {
		err := table.checkUnsafe(nil, allowingOnly("host", name))
		testx.WantInvalid(t, err, "runtime options: AllowUnsafeAnnotations", strconv.Quote(name), "host")
	}
}

// propertyPrefix begins the annotations for properties of the container's unit.
const propertyPrefix = "org.systemd.property."

// parseProperty is Parse of a container that has the property.
func parseProperty(name, value string) error {
	spec := annotated()
	spec.Annotations[propertyPrefix+name] = value
	_, err := table.Parse(spec, options.Options{}, "ns", "c1")
	return err
}

// On some of them libcontainer's parser does not return, or panics.
func TestProperties_AreRefusedThatLibcontainerCannotParse(t *testing.T) {
	for _, value := range []string{
		"", " ", "߀", "uint64 ߀", "5߀", "'߀'", "'\x00'", "'a\nb'", "\t5", "5\n", "'open", `'open\'`, "'a'b'", "5 6", "5x",
		"+", "0x",
		"yes", "uint64", "@i []", "@y []", "@zz 1", "@ 'x'", "@a{sv} []", "@(ii) []", "<5>", "<@i []>", "[[5]]", "[", "[5",
		"[5,]",
		"{1: 2}", "@i {}", "{1: {1: {1: {1: {1: {1: {1: {1: {1: {1: {1: 1}}}}}}}}}}}", "objectpath 'x'", "signature 'x'",
		"[]", "['a.service']", "@as []", "b'x'",
	} {
		for _, name := range append([]string{"Delegate=x"}, harmlessProperties...) {
			testx.WantInvalid(t, parseProperty(name, value), propertyPrefix+name, strconv.Quote(value), "true, false, a number")
		}
	}
}

func TestProperties_AreAllowed(t *testing.T) {
	for name, values := range map[string][]string{
		"CollectMode": {"'inactive-or-failed'", `"inactive"`, "string 'inactive'", "@s 'inactive'"},
		"Delegate":    {"true", "false", "boolean true"},
		"KillSignal":  {"15", " 15 ", "int32 15", "@i 15"}, "TimeoutStopUSec": {"uint64 123456789", "@t 0", "uint64 0x10", "uint16 5", "2.5", "1e2", "+1", `'it\'s {one}'`, `"it's <two> \"\\\""`, "''"},
	} {
		for _, value := range values {
			if err := parseProperty(name, value); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := dbus.ParseVariant(value, dbus.Signature{}); err != nil {
				t.Errorf("%s %q, which is allowed: libcontainer's parser: %v", name, value, err)
			}
		}
	}
}

func FuzzProperties(f *testing.F) {
	for _, value := range []string{"'a'", "uint64 5", "@as ['a', 'b']", "[byte 1, 2]", `b'\x00'`, "߀", "@i []"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if !scalar().MatchString(value) {
			return
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is allowed", value)
		}
		_, _ = dbus.ParseVariant(value, dbus.Signature{}) // does not panic
	})
}

func FuzzParse(f *testing.F) {
	f.Add(uint8(0), "parent", uint8(1), "true", uint8(0), "")
	f.Add(uint8(2), "1m30s", uint8(3), "true", uint8(8), "true")
	f.Add(uint8(9), "9", uint8(10), "SIGRTMIN+3", uint8(11), "7")
	f.Add(uint8(8), "/run/{id}/{namespace}/{exec}", uint8(2), "on", uint8(5), "none")
	names := table.Names()
	f.Fuzz(func(t *testing.T, a uint8, textA string, b uint8, textB string, allowed uint8, stop string) {
		nameA, nameB := names[int(a)%len(names)], names[int(b)%len(names)]
		spec := &specs.Spec{Annotations: map[string]string{Prefix + nameA: textA, Prefix + nameB: textB}}
		o := options.Options{Settings: map[string]string{"StopTimeout": stop}}
		unsafe := table.Unsafe()
		if i := int(allowed); i < len(unsafe) {
			o.AllowUnsafeAnnotations = unsafe[:i]
		}
		s, err := table.Parse(spec, o, "ns", "c1")
		if err != nil {
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsPermissionDenied(err) {
				t.Errorf("table.Parse(%q) = %v", spec.Annotations, err)
			}
			return
		}
		for _, row := range table {
			text, ok := spec.Annotations[Prefix+row.Name]
			if ok && row.Unsafe && text != row.SafeValue && !slices.Contains(o.AllowUnsafeAnnotations, row.Name) {
				t.Errorf("table.Parse(%q) accepts what %v does not allow", spec.Annotations, o.AllowUnsafeAnnotations)
			}
		}
		if s.Stop.Signal < 1 || s.Stop.Signal > lastSignal || s.Stop.Grace < 0 || s.Stop.Grace > MaxTimeout {
			t.Errorf("table.Parse(%q) = %+v, out of range", spec.Annotations, s)
		}
		if strings.Contains(s.VerdictFile.Text, "{id}") {
			t.Errorf("table.Parse(%q) = %+v", spec.Annotations, s)
		}
	})
}

func FuzzCheckAnnotations(f *testing.F) {
	f.Add("stop-signal", true)
	f.Add("", true)
	f.Fuzz(func(t *testing.T, name string, prefixed bool) {
		key := name
		if prefixed {
			key = Prefix + name
		}
		err := table.CheckAnnotations(map[string]string{key: "x"})
		known := !strings.HasPrefix(key, Prefix) ||
			slices.ContainsFunc(table, func(a Setting) bool { return Prefix+a.Name == key })
		if (err == nil) != known || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("table.CheckAnnotations(%q) = %v, known: %t", key, err, known)
		}
	})
}
