// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"slices"
	"strings"
	"testing"

	"sandbox.internal/shim/pkg/options"
)

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
		wantInvalid(t, err, "config.json: annotations: "+Prefix+"cpuset.source", "several with commas", "{alloc}")
	}
	_, err := table.Parse(annotated(), options.Options{Settings: map[string]string{"CpusetSource": "a,"}, File: "/etc/x"}, "ns", "c1")
	wantInvalid(t, err, `/etc/x: CpusetSource "a,": must be parent`)
}

// What is put into a path is a part of an id, of which no character leaves a directory.
func FuzzExpandSources(f *testing.F) {
	f.Add("web-0f5ad3c0-1234-5678-9abc-def012345678", "{alloc}/{task}")
	f.Add("{task}.0f5ad3c0-1234-5678-9abc-def012345678", "{id}{namespace}")
	f.Fuzz(func(t *testing.T, id, source string) {
		for _, got := range expandSources([]string{source}, "ns", id) {
			if strings.Count(got, "/") > strings.Count(source, "/")+strings.Count(id, "/")*strings.Count(source, "{") {
				t.Errorf("%q of %q = %q", source, id, got)
			}
		}
	})
}
