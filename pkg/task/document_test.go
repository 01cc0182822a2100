// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// What a document has in front of the specification's types comes to its place, and nothing else is lost: each field that there is for
// Linux, however deep, is set and read.
func TestADocumentHasAllThatIsForLinux(t *testing.T) {
	var want specs.Spec
	fill(reflect.ValueOf(&want).Elem())
	for field, value := range reflect.ValueOf(&want).Elem().Fields() {
		if forAnotherPlatform(field) {
			value.SetZero()
		}
	}
	if want.Linux.Resources.BlockIO.WeightDevice[0].Weight == nil || want.Hooks.Poststop[0].Timeout == nil {
		t.Fatal("fill left something out")
	}
	data, err := json.Marshal(want)
	must(t, err)
	bundle := t.TempDir()
	must(t, os.WriteFile(filepath.Join(bundle, specFile), data, 0o600))
	got, err := ReadSpec(bundle)
	must(t, err)
	if diff := cmp.Diff(&want, got, cmp.AllowUnexported(specs.LinuxWeightDevice{}, specs.LinuxThrottleDevice{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// fill sets all below v: a number to 1, a text to "x", and of slices and maps one element.
func fill(v reflect.Value) {
	switch k := v.Kind(); {
	case k == reflect.Bool:
		v.SetBool(true)
	case k == reflect.String:
		v.SetString("x")
	case v.CanInt(), v.CanUint(), v.CanFloat():
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	case k == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case k == reflect.Struct:
		for _, member := range v.Fields() {
			fill(member)
		}
	case k == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case k == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		element := reflect.New(v.Type().Elem()).Elem()
		fill(element)
		v.SetMapIndex(reflect.ValueOf("x").Convert(v.Type().Key()), element)
	}
}

func forAnotherPlatform(f reflect.StructField) bool {
	platforms := f.Tag.Get("platform")
	return platforms != "" && !strings.Contains(platforms, "linux")
}

// The specification may get another platform.
func TestADocumentLeavesOutWhatIsForOtherPlatforms(t *testing.T) {
	for field := range reflect.TypeFor[specs.Spec]().Fields() {
		own, _ := reflect.TypeFor[document]().FieldByName(field.Name)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch left := own.Type == reflect.TypeFor[skipped](); {
		case left != forAnotherPlatform(field):
			t.Errorf("%s (platforms %q): left out is %v", field.Name, field.Tag.Get("platform"), left)
		case left && own.Tag.Get("json") != name:
			t.Errorf("%s: json %q, want %q", field.Name, own.Tag.Get("json"), name)
		}
	}
}
