// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/options"
)

// allowingOnly are options that allow these annotations.
func allowingOnly(names ...string) options.Options {
	return options.Options{AllowUnsafeAnnotations: names}
}

// Whoever may create pods is not to be root of the node by that, unless the node's configuration says so.
func TestUnsafeAnnotations_NeedAnOptionThatAllowsThem(t *testing.T) {
	for name, value := range map[string]string{
		"host": "/root", "host.user": "root", "cpuset.source": "/other", "verdict-file": "/v/{id}:{exec}",
	} {
		others := slices.DeleteFunc(table.Unsafe(), func(n string) bool { return n == name })
		o := options.Options{Settings: map[string]string{"Host": "off", "HostUser": "nobody"}, AllowUnsafeAnnotations: others}
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
	spec := annotated("host", "off", "host.user", "root", "cpuset.source", "parent", "cpuset.mems", "true")
	if err := table.checkUnsafe(spec.Annotations, options.Options{}); err != nil {
		t.Error(err)
	}
}

func TestAllowUnsafeAnnotations_NamesWhatThereIs(t *testing.T) {
	for _, name := range []string{"hots", "on", Prefix + "host", ""} {
		err := table.checkUnsafe(nil, allowingOnly("host", name))
		wantInvalid(t, err, "runtime options: AllowUnsafeAnnotations", strconv.Quote(name), "host, host.user")
	}
}
