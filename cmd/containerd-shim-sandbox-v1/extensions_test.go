// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/settings"
)

// A program without a line of the list knows nothing of that extension, and all of the others.
func TestExtensions_WithoutOneOfThem(t *testing.T) {
	for i, without := range extensions() {
		table := slices.Delete(extensions(), i, i+1).Settings()
		for _, s := range extensions().Settings() {
			missing := slices.Contains(without.Settings, s)
			if err := table.CheckAnnotations(map[string]string{settings.Prefix + s.Name: "x"}); errdefs.IsInvalidArgument(err) != missing {
				t.Errorf("annotation %s without %s: %v", s.Name, without.Name, err)
			}
			if s.Option == "" {
				continue
			}
			body, err := proto.Marshal(&runtimeoptions.Options{ConfigBody: []byte(s.Option + " = ''")})
			must(t, err)
			sent := &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: body}
			_, err = options.NewDefaults("", table.Options()...).Decode(sent, "ns")
			if unknown := err != nil && strings.Contains(err.Error(), fmt.Sprintf("unknown key %q", s.Option)); unknown != missing {
				t.Errorf("option %s without %s: %v", s.Option, without.Name, err)
			}
		}
	}
}

// A vendor may take out each line of the list.
func TestExtensions_ProgramWithoutAny(t *testing.T) {
	list, err := filepath.Abs("extensions.go")
	must(t, err)
	empty, err := filepath.Abs("testdata/noextensions.go")
	must(t, err)
	dir := t.TempDir()
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{list: empty}})
	must(t, err)
	overlay, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "shim")
	must(t, os.WriteFile(overlay, replace, 0o600))
	flags := []string{"-overlay=" + overlay, "-tags=" + buildTags()}
	for _, args := range [][]string{{"vet"}, {"build", "-o", program}} {
		if out, err := exec.CommandContext(t.Context(), "go", append(args, flags...)...).CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", args[0], err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), program, "-info").Output()
	must(t, err)
	var info types.RuntimeInfo
	must(t, proto.Unmarshal(out, &info))
	if got, want := info.Annotations[settings.Prefix+"settings"], strings.Join(settings.Core().Names(), ","); got != want {
		t.Errorf("settings = %q, want %q", got, want)
	}
	for _, e := range extensions() {
		for _, s := range e.Settings {
			if strings.Contains(string(info.Features.Value), settings.Prefix+s.Name) {
				t.Errorf("features have %s: %s", s.Name, info.Features.Value)
			}
		}
	}
}

// buildTags returns those of this test.
func buildTags() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			return s.Value
		}
	}
	return ""
}

func TestExtensions_HaveNamesOfTheirOwn(t *testing.T) {
	names, table := map[string]bool{}, extensions().Settings()
	for _, e := range extensions() {
		if names[e.Name] {
			t.Errorf("two extensions are %s", e.Name)
		}
		names[e.Name] = true
	}
	seen := map[string]bool{}
	for _, s := range table {
		if seen[s.Name] || s.Option != "" && seen[s.Option] {
			t.Errorf("two settings are %s or %s", s.Name, s.Option)
		}
		seen[s.Name], seen[s.Option] = true, true
	}
}

// What people copy from the documentation must not make whoever may create pods root of the node.
func TestUnsafeAnnotations_AreNotInTheDocumentation(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*.md")
	must(t, err)
	deploy, err := filepath.Glob("../../deploy/*.toml")
	must(t, err)
	list := regexp.MustCompile(`(?m)^\s*(?:pod|container)_annotations = .*$`)
	element := regexp.MustCompile(`"([^"]*)"`)
	found := 0
	for _, file := range append(docs, deploy...) {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, line := range list.FindAllString(string(text), -1) {
			for _, pattern := range element.FindAllStringSubmatch(line, -1) {
				found++
				for _, name := range extensions().Settings().Unsafe() {
					if ok, err := path.Match(pattern[1], settings.Prefix+name); ok || err != nil { // as CRI does
						t.Errorf("%s: %q lets %s through (%v)", file, pattern[1], name, err)
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("no example found")
	}
}
