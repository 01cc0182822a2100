// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/options"
)

func TestTable_NamesFieldsOfTheOptions(t *testing.T) {
	for _, a := range table() {
		if a.option == "" {
			continue // an annotation of pods
		}
		if _, ok := reflect.TypeFor[options.Options]().FieldByName(a.option); !ok {
			t.Errorf("annotation %s: options.Options has no field %q", a.name, a.option)
		}
	}
}

// allowingOnly are options that allow these annotations.
func allowingOnly(names ...string) options.Options {
	return options.Options{AllowUnsafeAnnotations: names}
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
	for name, value := range map[string]string{
		"host-rootfs": "/root:/r:rw", "host-rootfs.mask": "none", "pid-file": "/run/pid", "listen": "tcp://127.0.0.1:0", "cpuset.source": "/other",
		"verdict-file": "/v/{id}:{exec}", "host-rootfs.user": "root",
	} {
		others := slices.DeleteFunc(unsafeNames(), func(n string) bool { return n == name })
		o := options.Options{
			HostRootfs: "off", HostRootfsMask: "default", HostRootfsUser: "nobody", Listen: "none", AllowUnsafeAnnotations: others,
		}
		_, err := Parse(annotated(name, value), o, "ns", "c1")
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("Parse with %s = %v, want that permission is denied", name, err)
		}
		for _, want := range []string{Prefix + name, strconv.Quote(value), fmt.Sprintf("AllowUnsafeAnnotations = [%q]", name)} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error = %v, which does not say %q", err, want)
			}
		}
		if err := checkUnsafe(annotated(name, value).Annotations, allowingOnly(append(others, name)...)); err != nil {
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
		_, err := Parse(spec, options.Options{AllowUnsafeAnnotations: unsafeNames()}, "ns", "c1")
		if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), key) {
			t.Errorf("Parse with %s = %v, want that permission is denied", key, err)
		}
		if _, err := Parse(spec, options.Options{AllowUnsafeAnnotations: []string{name}}, "ns", "c1"); err != nil {
			t.Errorf("Parse with %s, which is allowed: %v", key, err)
		}
	}
	spec := annotated()
	spec.Annotations["org.systemd.properties"] = "x"           // nobody reads it
	spec.Annotations["org.systemd.property.Delegate"] = "true" // clients set it
	if _, err := Parse(spec, options.Options{}, "ns", "c1"); err != nil {
		t.Errorf("Parse with what is harmless: %v", err)
	}
}

// They take something away from a container, or give it what is its pod's.
func TestUnsafeAnnotations_AreAllowedWhereTheyDoNoHarm(t *testing.T) {
	spec := annotated("host-rootfs", "off", "listen", "none", "cpuset.source", "parent", "cpuset.mems", "true")
	if err := checkUnsafe(spec.Annotations, options.Options{}); err != nil {
		t.Error(err)
	}
}

func TestAllowUnsafeAnnotations_NamesWhatThereIs(t *testing.T) {
	for _, name := range []string{"host-rootsf", "notify", Prefix + "host-rootfs", ""} {
		err := checkUnsafe(nil, allowingOnly("listen", name))
		wantInvalid(t, err, "runtime options: AllowUnsafeAnnotations", strconv.Quote(name), "host-rootfs, host-rootfs.mask")
	}
}
