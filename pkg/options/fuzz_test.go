// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"reflect"
	"slices"
	"strconv"
	"testing"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func FuzzDecode(f *testing.F) {
	for url, m := range map[string]proto.Message{
		runcOptions: &runc.Options{Root: "/r", IoUid: 1, NoPivotRoot: true, BinaryName: "b", ShimCgroup: "/c"},
		"/" + genericOptions: &runtimeoptions.Options{
			TypeUrl: "u", ConfigBody: []byte("Root = '/r'\nIoGid = 7\nAllowUnsafeAnnotations = ['listen']\n"),
		},
		oldGenericOptions: &runtimeoptions.Options{ConfigBody: []byte("Roots = 1")},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
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

func FuzzTOML(f *testing.F) {
	f.Add([]byte("NoPivotRoot = true\nCriuPath = \"a\\u0000\"\nAllowUnsafeAnnotations = []\n"))
	f.Add([]byte("IoUid = 0x10 # x\n[Options]\n"))
	f.Add([]byte("StopTimeout = '''\n7'''\nIoGid = 4294967296"))
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := newDecoder("").decodeGeneric(&runtimeoptions.Options{ConfigBody: body})
		if err == nil {
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
	if err != nil {
		t.Fatal(err)
	}
	again, err := newDecoder("").decodeGeneric(&runtimeoptions.Options{ConfigBody: body})
	again.File = o.File
	if diff := cmp.Diff(o, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("as TOML %q: %v (-want +got):\n%s", body, err, diff)
	}
}
