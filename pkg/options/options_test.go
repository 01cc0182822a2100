// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/internal/testx"
)

func pack(t *testing.T, url string, m proto.Message) *anypb.Any {
	t.Helper()
	value, err := proto.Marshal(m)
	testx.Must(t, err)
	return &anypb.Any{TypeUrl: url, Value: value}
}

// generic is a message with a TOML body.
func generic(t *testing.T, body string) *anypb.Any {
	t.Helper()
	return pack(t, genericOptions, &runtimeoptions.Options{TypeUrl: "x", ConfigBody: []byte(body)})
}

// newDecoder returns the Defaults of a file, with some keys of settings.
func newDecoder(file string) *Defaults {
	return NewDefaults(file, Key{"CpusetSource", false}, Key{"CpusetMems", true}, Key{"StopSignal", false},
		Key{"StopTimeout", false}, Key{"Notify", true}, Key{"Init", true}, Key{"Other", false})
}

func TestDecode_EveryForm(t *testing.T) {
	file := filepath.Join(t.TempDir(), "options.toml")
	testx.Write(t, file, "Root = '/from/file'\n")
	all := &runc.Options{
		NoPivotRoot: true, NoNewKeyring: true, ShimCgroup: "/c", IoUid: 1, IoGid: 2, BinaryName: "runc",
		Root: "/r", CriuImagePath: "/i", CriuWorkPath: "/w", SystemdCgroup: true,
	}
	wantAll := Options{
		NoPivotRoot: true, NoNewKeyring: true, ShimCgroup: "/c", IoUid: 1, IoGid: 2, BinaryName: "runc",
		Root: "/r", CriuImagePath: "/i", CriuWorkPath: "/w", SystemdCgroup: true,
	}
	wantOurs := wantAll
	wantOurs.Settings = map[string]string{"CpusetSource": "parent", "CpusetMems": "true", "StopTimeout": "5s", "Init": "false"}
	wantOurs.MaxShmSize, wantOurs.PodsPerShim = "1Gi", 50
	wantOurs.AllowUnsafeAnnotations = []string{"listen", "pid-file"}
	const body = `
NoPivotRoot=true
NoNewKeyring=true
ShimCgroup='/c'
IoUid=1
IoGid=2
binaryname='runc'
Root='/r'
CriuImagePath='/i'
CriuWorkPath='/w'
CriuPath=''
SystemdCgroup=true
CpusetSource='parent'
CpusetMems=true
stoptimeout='5s'
Init=false
MaxShmSize='1Gi'
PodsPerShim=50
AllowUnsafeAnnotations=['listen', 'pid-file']
`
	for _, tc := range []struct {
		name string
		in   *anypb.Any
		want Options
	}{
		{"no options", nil, Options{}},
		{"an empty message", &anypb.Any{}, Options{}},
		{"runc options, all fields", pack(t, runcOptions, all), wantAll},
		{"runc options with a URL in front", pack(t, "types.googleapis.com/"+runcOptions, all), wantAll},
		{"a TOML body, all keys", generic(t, body), wantOurs},
		{
			"a file wins over a body",
			pack(t, genericOptions, &runtimeoptions.Options{ConfigPath: file, ConfigBody: []byte(body)}),
			Options{Root: "/from/file"},
		},
		{"an empty generic message", pack(t, genericOptions, &runtimeoptions.Options{}), Options{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := newDecoder("").Decode(tc.in, "ns")
			testx.Must(t, err)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Decode (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecode_Refuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   *anypb.Any
		want []string // all in the text
	}{
		{"another type", &anypb.Any{TypeUrl: "example.v1.Options"}, []string{"example.v1.Options", runcOptions}},
		{"bytes that are no message", &anypb.Any{TypeUrl: runcOptions, Value: []byte{0xff}}, []string{runcOptions}},
		{"an unknown key", generic(t, "SystemdGroup = true"), []string{"runtime options: config_body: unknown key \"SystemdGroup\""}},
		{"an unknown table", generic(t, "[a]\nb = 1"), []string{`"a"`}},
		{"a namespace, which only the default file has", generic(t, "[namespace.a]"), []string{`"namespace"`}},
		{"a value of another kind", generic(t, "SystemdCgroup = 'yes'"), []string{"config_body: SystemdCgroup: must be a bool, is a string"}},
		{"text that is no TOML", generic(t, "= ="), []string{"config_body: line 1: "}},
		{
			"a file that is not there", pack(t, genericOptions, &runtimeoptions.Options{ConfigPath: "/nowhere.toml"}),
			[]string{"/nowhere.toml"},
		},
		{"a relative root", generic(t, "Root = 'run'"), []string{"Root", "\"run\"", "absolute"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := newDecoder("").Decode(tc.in, "ns")
			testx.WantInvalid(t, err, tc.want...)
		})
	}
}

func TestDefaults_AreForWhoHasNoOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	d := newDecoder(file)
	if o, err := d.Decode(nil, "ns"); err != nil || !cmp.Equal(o, Options{}) {
		t.Errorf("Decode without a file = %+v, %v, want none", o, err)
	}
	testx.Write(t, file, "StopTimeout = '5s'\nNoNewKeyring = true\n[namespace.moby]\nStopSignal = 'INT'\n[namespace.'k8s.io']\n")
	stop := func(key, value string) map[string]string { return map[string]string{key: value} }
	all := Options{Settings: stop("StopTimeout", "5s"), NoNewKeyring: true, File: file}
	for _, tc := range []struct {
		name      string
		in        *anypb.Any
		namespace string
		want      Options
	}{
		{"no message", nil, "default", all},
		{"an empty message", &anypb.Any{}, "default", all},
		{"options that set nothing", pack(t, runcOptions, &runc.Options{}), "default", all},
		{"TOML that sets nothing", generic(t, ""), "default", all},
		{"TOML that is empty", generic(t, " \n"), "default", all},
		{"TOML that sets what is so without", generic(t, "NoNewKeyring = false"), "default", Options{}},
		{"options of its own", pack(t, runcOptions, &runc.Options{NoPivotRoot: true}), "default", Options{NoPivotRoot: true}},
		{
			"what containerd adds for a user namespace", pack(t, runcOptions, &runc.Options{IoUid: 1, IoGid: 2}), "default",
			Options{Settings: stop("StopTimeout", "5s"), NoNewKeyring: true, File: file, IoUid: 1, IoGid: 2},
		},
		{"a namespace with a table", nil, "moby", Options{Settings: stop("StopSignal", "INT"), File: file}},
		{"a namespace with an empty table", nil, "k8s.io", Options{File: file}},
	} {
		got, err := d.Decode(tc.in, tc.namespace)
		if err != nil || !cmp.Equal(got, tc.want) {
			t.Errorf("%s: Decode = %v, diff (-want +got):\n%s", tc.name, err, cmp.Diff(tc.want, got))
		}
	}
	testx.Write(t, file, "")
	if o, err := d.Decode(nil, "ns"); err != nil || !cmp.Equal(o, Options{File: file}) {
		t.Errorf("Decode with an empty file = %+v, %v, want none", o, err)
	}
}

func TestDefaults_RefusesWhatIsWrong(t *testing.T) {
	for content, want := range map[string]string{
		"Nonsense = 1":                      `unknown key "Nonsense"`,
		"[namespace.a]\nNonsense = 1":       `namespace.a: unknown key "Nonsense"`,
		"Notify = true\nStopTimeout = '5s":  "line 2: ",
		"Init = true\nInit = false":         "line 2: ",
		"StopTimeout = 30":                  "StopTimeout 30: must be a string, in quotes",
		"stoptimeout = 30":                  "stoptimeout 30: must be a string, in quotes",
		"Other = ['default']":               "Other [default]: must be a string, in quotes",
		"AllowUnsafeAnnotations = 'listen'": "AllowUnsafeAnnotations: must be a []string, is a string",
		"[namespace.a]\nNotify = 'true'":    "namespace.a: Notify true: must be true or false, without quotes",
		"namespace = {a = {Init = 3}}":      "namespace.a: Init 3: must be true or false",
		"IoGid = 4294967296":                "IoGid: must be a uint32, is a number 4294967296",
		"Notify.x = 1":                      "Notify map[x:1]: must be true or false",
		"namespace.Notify = 3":              "namespace.Notify: must be a table",
		"namespace = 3":                     `unknown key "namespace"`,
		"MaxShmSize = 'lots'":               `MaxShmSize "lots": must be a size in bytes`,
		"MaxShmSize = '0'":                  `MaxShmSize "0": must be a size in bytes`,
		"PodsPerShim = -1":                  `PodsPerShim -1: must be between 1 and 1000`,
		"PodsPerShim = 1001":                `PodsPerShim 1001: must be between 1 and 1000`,
		"PodsPerShim = '50'":                `PodsPerShim: must be a int, is a string`,
		"File = '/x'":                       `unknown key "File"`,
		"[namespace.a]\nRoot = 'x'":         `namespace.a: Root "x": must be an absolute path`,
	} {
		file := filepath.Join(t.TempDir(), "config.toml")
		testx.Write(t, file, content)
		_, err := newDecoder(file).Decode(nil, "ns")
		testx.WantInvalid(t, err, file+": "+want)
		o, err := newDecoder(file).Decode(pack(t, runcOptions, &runc.Options{NoPivotRoot: true}), "ns")
		if err != nil || !o.NoPivotRoot {
			t.Errorf("Decode of a container with options = %+v, %v, want them", o, err)
		}
	}
	_, err := newDecoder(t.TempDir()).Decode(nil, "ns")
	testx.WantText(t, err, "default configuration", "is a directory")
}

func TestDecode_SaysOnceThatBinaryNameHasNoEffect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	testx.Write(t, file, "BinaryName = 'crun'")
	for in, want := range map[*anypb.Any]int{
		pack(t, runcOptions, &runc.Options{BinaryName: "crun"}): 1, nil: 1, pack(t, runcOptions, &runc.Options{Root: "/r"}): 0,
	} {
		var out bytes.Buffer
		before := log.L.Logger.Out
		log.L.Logger.SetOutput(&out)
		d := newDecoder(file)
		for range 2 {
			_, err := d.Decode(in, "ns")
			testx.Must(t, err)
		}
		log.L.Logger.SetOutput(before)
		if n := strings.Count(out.String(), "BinaryName has no effect"); n != want {
			t.Errorf("%v: it is logged %d times, want %d: %s", in, n, want, out.String())
		}
	}
}

// Examples of the default configuration file begin with its name.
func TestDefaults_TakesTheExamplesOfTheDocumentation(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	testx.Must(t, err)
	example := regexp.MustCompile("(?ms)^```toml\n# " + DefaultFile + "\n(.*?)^```$")
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		testx.Must(t, err)
		for _, m := range example.FindAllSubmatch(text, -1) {
			found++
			all, err := newDecoder(page).parse(m[1])
			if err != nil || all["nomad.slice"].Settings["CpusetSource"] != "nomad.slice/share.slice" {
				t.Errorf("%s: %q = %+v, %v", page, m[1], all, err)
			}
		}
	}
	if found < 2 {
		t.Errorf("%d examples found, want those of configuration.md and nomad.md", found)
	}
}

func FuzzDecode(f *testing.F) {
	for url, m := range map[string]proto.Message{
		runcOptions: &runc.Options{Root: "/r", IoUid: 1, NoPivotRoot: true, BinaryName: "b", ShimCgroup: "/c"},
		"/" + genericOptions: &runtimeoptions.Options{
			TypeUrl: "u", ConfigBody: []byte("Root = '/r'\nIoGid = 7\nAllowUnsafeAnnotations = ['listen']\n"),
		},
		genericOptions: &runtimeoptions.Options{ConfigBody: []byte("Roots = 1")},
	} {
		data, err := proto.Marshal(m)
		testx.Must(f, err)
		f.Add(url, data)
	}
	f.Add("", []byte("x"))
	f.Fuzz(func(t *testing.T, url string, value []byte) {
		var generic runtimeoptions.Options
		if proto.Unmarshal(value, &generic) == nil && generic.ConfigPath != "" {
			return // no file of this machine
		}
		o, err := newDecoder("").Decode(&anypb.Any{TypeUrl: url, Value: value}, "ns")
		if err != nil {
			if !errdefs.IsInvalidArgument(err) || !cmp.Equal(o, Options{}) {
				t.Errorf("Decode(%q, %q) = %+v, %v", url, value, o, err)
			}
			return
		}
		if !Known(url) {
			t.Errorf("Decode(%q) takes a type that is not known", url)
		}
		wantSame(t, o)
	})
}

func FuzzDefaults(f *testing.F) {
	f.Add([]byte("IoUid = 1\n[namespace.a]\nStopTimeout = '1s'\n"))
	f.Add([]byte("namespace = 1\n[namespace.'']\nFile = ''"))
	f.Add([]byte("IoUid = 0x10 # x\n[Options]\n"))
	f.Add([]byte("StopTimeout = '''\n7'''\nIoGid = 4294967296\nCriuPath = \"a\\u0000\""))
	f.Fuzz(func(t *testing.T, body []byte) {
		all, err := newDecoder("/etc/x.toml").parse(body)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), "/etc/x.toml: ") {
				t.Errorf("parse(%q) = %v", body, err)
			}
			return
		}
		for _, o := range all {
			wantSame(t, o)
		}
	})
}

// wantSame checks that options say the same when they are written as TOML and read again.
func wantSame(t *testing.T, o Options) {
	t.Helper()
	table := map[string]any{}
	for i, fields := 0, reflect.ValueOf(o); i < fields.NumField(); i++ {
		if name := fields.Type().Field(i).Name; name != "Settings" && name != "File" {
			table[name] = fields.Field(i).Interface()
		}
	}
	for key, value := range o.Settings {
		table[key] = value
		if v, err := strconv.ParseBool(value); err == nil && slices.Contains(newDecoder("").settings, Key{key, true}) {
			table[key] = v
		}
	}
	body, err := toml.Marshal(table)
	testx.Must(t, err)
	again, _, err := newDecoder("").decodeGeneric(&runtimeoptions.Options{ConfigBody: body})
	again.File = o.File
	if diff := cmp.Diff(o, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("as TOML %q: %v (-want +got):\n%s", body, err, diff)
	}
}
