// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

func TestCPUSet_NeedsCgroup2(t *testing.T) {
	harness.OursOnly(t, "a cpuset that follows another")
	if unified() {
		lacking(t, "cgroup1", "cgroup v1")
	}
	e := newEnv(t)
	annotated := with(oci.WithAnnotations(map[string]string{annotationSource: "parent"}))
	_, err := e.tryCreate("c1", config{opts: annotated}, "true")
	wantError(t, err, errdefs.ErrFailedPrecondition, annotationSource, "cgroup v2")
	_, err = e.tryCreate("c2", config{new: withOptions(e, `CpusetSource = "parent"`)}, "true")
	wantError(t, err, errdefs.ErrFailedPrecondition, "CpusetSource", "cgroup v2")
	c := e.run("c3", config{opts: append(annotated, oci.WithCPUs("0"))}, showAffinity...)
	c.wantExit(0)
	c.wantAffinity("0")
}

func TestCPUSet_AnnotationsThatAreRefused(t *testing.T) {
	harness.OursOnly(t, "a cpuset that follows another")
	e := newEnv(t)
	for id, tt := range map[string]struct {
		annotations map[string]string
		words       []string
	}{
		"unknown": {map[string]string{"io.containerd.sandbox.v1/cpuset.sources": "parent"}, []string{`"io.containerd.sandbox.v1/cpuset.sources"`, annotationSource, annotationMems}},
		"bool":    {map[string]string{annotationSource: "parent", annotationMems: "1"}, []string{annotationMems, `"1"`, "true or false"}},
		"nothing": {map[string]string{annotationMems: "true"}, []string{annotationMems, "has no effect without " + annotationSource}},
	} {
		_, err := e.tryCreate(id, config{opts: with(oci.WithAnnotations(tt.annotations))}, "true")
		wantError(t, err, errdefs.ErrInvalidArgument, tt.words...)
	}
}

func TestCPUSet_SourcesThatAreRefused(t *testing.T) {
	e := newCPUSetEnv(t)
	e.source("other", "3")
	pod := e.source("pod", "0-1")
	writeControl(t, pod.dir, "cgroup.subtree_control", "+cpuset")
	for id, tt := range map[string]struct {
		source string
		class  error
		words  []string
	}{
		"missing":  {e.namespace + "/missing", errdefs.ErrNotFound, []string{e.namespace + "/missing"}},
		"above":    {"../../etc", errdefs.ErrInvalidArgument, []string{`"../../etc"`, "must not have an element .."}},
		"own":      {e.namespace + "/pod/own", errdefs.ErrInvalidArgument, []string{"the container's own cgroup"}},
		"disjoint": {e.namespace + "/other", errdefs.ErrFailedPrecondition, []string{`"3"`, `"0-1"`}},
	} {
		opts := with(oci.WithCgroup("/"+e.namespace+"/pod/"+id),
			oci.WithAnnotations(map[string]string{annotationSource: tt.source}))
		_, err := e.tryCreate(id, config{opts: opts}, "true")
		wantError(t, err, tt.class, append(tt.words, annotationSource)...)
		wantGone(t, pod.dir+"/"+id)
	}
	_, err := e.tryCreate("option", config{new: withOptions(e, `CpusetSource = "`+e.namespace+`/missing"`)}, "true")
	wantError(t, err, errdefs.ErrNotFound, "CpusetSource", e.namespace+"/missing")
}
