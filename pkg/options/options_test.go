// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func pack(t *testing.T, url string, m proto.Message) *anypb.Any {
	t.Helper()
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{TypeUrl: url, Value: value}
}

// newDecoder returns the Defaults of a file, with some keys of settings.
func newDecoder(file string) *Defaults {
	return NewDefaults(file, Key{"CpusetSource", false}, Key{"CpusetMems", true}, Key{"StopSignal", false},
		Key{"StopTimeout", false}, Key{"Notify", true}, Key{"Init", true}, Key{"Other", false})
}

func TestDecode_EveryForm(t *testing.T) {
	file := filepath.Join(t.TempDir(), "options.toml")
	if err := os.WriteFile(file, []byte("Root = '/from/file'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
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
	wantOurs.MaxShmSize = "1Gi"
	wantOurs.AllowUnsafeAnnotations = []string{"listen", "pid-file"}
	const body = `
NoPivotRoot=true
NoNewKeyring=true
ShimCgroup='/c'
IoUid=1
IoGid=2
BinaryName='runc'
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
		{"a TOML body, all keys", pack(t, genericOptions, &runtimeoptions.Options{ConfigBody: []byte(body)}), wantOurs},
		{
			"a TOML body under the old name",
			pack(t, oldGenericOptions, &runtimeoptions.Options{ConfigBody: []byte(body)}), wantOurs,
		},
		{
			"a file wins over a body",
			pack(t, genericOptions, &runtimeoptions.Options{ConfigPath: file, ConfigBody: []byte(body)}),
			Options{Root: "/from/file"},
		},
		{"an empty generic message", pack(t, genericOptions, &runtimeoptions.Options{}), Options{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := newDecoder("").Decode(tc.in, "ns")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Decode (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecode_Refuses(t *testing.T) {
	generic := func(body string) *anypb.Any {
		return pack(t, genericOptions, &runtimeoptions.Options{ConfigBody: []byte(body)})
	}
	for _, tc := range []struct {
		name string
		in   *anypb.Any
		want []string // all in the text
	}{
		{"another type", &anypb.Any{TypeUrl: "example.v1.Options"}, []string{"example.v1.Options", runcOptions}},
		{"bytes that are no message", &anypb.Any{TypeUrl: runcOptions, Value: []byte{0xff}}, []string{runcOptions}},
		{"an unknown key", generic("SystemdGroup = true"), []string{"SystemdGroup", "SystemdCgroup", "config_body"}},
		{"an unknown table", generic("[a]\nb = 1"), []string{"a"}},
		{"a value of another kind", generic("SystemdCgroup = 'yes'"), []string{"config_body", "SystemdCgroup"}},
		{"text that is no TOML", generic("= ="), []string{"config_body"}},
		{
			"a file that is not there", pack(t, genericOptions, &runtimeoptions.Options{ConfigPath: "/nowhere.toml"}),
			[]string{"/nowhere.toml"},
		},
		{"a relative root", generic("Root = 'run'"), []string{"Root", "\"run\"", "absolute"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := newDecoder("").Decode(tc.in, "ns")
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("Decode = %v, want an invalid argument", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Decode = %q, which does not say %q", err, want)
				}
			}
		})
	}
}
