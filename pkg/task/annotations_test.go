// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/options"
)

// What people copy from the documentation must not make whoever may create pods root of the node.
func TestTheDocumentationLetsNoUnsafeAnnotationThrough(t *testing.T) {
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
				for _, key := range UnsafeAnnotations() {
					if ok, err := path.Match(pattern[1], key); ok || err != nil { // as CRI does
						t.Errorf("%s: %q lets %s through (%v)", file, pattern[1], key, err)
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("no example found")
	}
}

// Whoever may create pods is not to be root of the node by that, unless the node's configuration says so.
func TestUnsafeAnnotations_NeedAnOptionThatAllowsThem(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{
		"host-rootfs": "/root:/r:rw", "host-rootfs.mask": "none", "pid-file": dir + "/pid", "listen": "tcp://127.0.0.1:0", "cpuset.source": "/other",
	} {
		others := slices.DeleteFunc(unsafeNames(), func(n string) bool { return n == name })
		a := asked{annotations: map[string]string{name: value}, options: options.Options{
			HostRootfs: "off", HostRootfsMask: "default", Listen: "none", AllowUnsafeAnnotations: others,
		}}
		bundle := newBundle(t, a.spec())
		before := files(t, bundle)
		s := newManager(t, &fakeEngine{})
		_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: a.options})
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("Create with %s = %v, want that permission is denied", name, err)
		}
		wantText(t, err, annotationPrefix+name, strconv.Quote(value), fmt.Sprintf("AllowUnsafeAnnotations = [%q]", name))
		if got := files(t, bundle); got != before {
			t.Errorf("files = %q after %v, want %q", got, err, before)
		}
		if err := checkUnsafe(a.spec().Annotations, append(others, name)); err != nil {
			t.Errorf("with %s allowed: %v", name, err)
		}
	}
}

// They take something away from a container, or give it what is its pod's.
func TestUnsafeAnnotations_AreAllowedWhereTheyDoNoHarm(t *testing.T) {
	a := asked{annotations: map[string]string{"host-rootfs": "off", "listen": "none", "cpuset.source": "parent", "cpuset.mems": "true"}}
	if err := checkUnsafe(a.spec().Annotations, nil); err != nil {
		t.Error(err)
	}
}

func TestAllowUnsafeAnnotations_NamesWhatThereIs(t *testing.T) {
	for _, name := range []string{"host-rootsf", "notify", annotationHostRootfs, ""} {
		err := checkUnsafe(nil, []string{"listen", name})
		wantInvalid(t, err, "runtime options: AllowUnsafeAnnotations", strconv.Quote(name), "host-rootfs, host-rootfs.mask")
	}
}
