// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/options"
)

func FuzzParse(f *testing.F) {
	f.Add(uint8(0), "parent", uint8(1), "true", uint8(0), "")
	f.Add(uint8(2), "1m30s", uint8(3), "true", uint8(8), "true")
	f.Add(uint8(9), "9", uint8(10), "SIGRTMIN+3", uint8(11), "7")
	f.Add(uint8(8), "/run/{id}/{namespace}/{exec}", uint8(2), "on", uint8(5), "none")
	names := table.Names()
	f.Fuzz(func(t *testing.T, a uint8, textA string, b uint8, textB string, allowed uint8, stop string) {
		nameA, nameB := names[int(a)%len(names)], names[int(b)%len(names)]
		spec := &specs.Spec{Annotations: map[string]string{Prefix + nameA: textA, Prefix + nameB: textB}}
		o := options.Options{Settings: map[string]string{"StopTimeout": stop}}
		unsafe := table.Unsafe()
		if i := int(allowed); i < len(unsafe) {
			o.AllowUnsafeAnnotations = unsafe[:i]
		}
		s, err := table.Parse(spec, o, "ns", "c1")
		if err != nil {
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsPermissionDenied(err) {
				t.Errorf("table.Parse(%q) = %v", spec.Annotations, err)
			}
			return
		}
		for _, row := range table {
			text, ok := spec.Annotations[Prefix+row.Name]
			if ok && row.Unsafe && text != row.SafeValue && !slices.Contains(o.AllowUnsafeAnnotations, row.Name) {
				t.Errorf("table.Parse(%q) accepts what %v does not allow", spec.Annotations, o.AllowUnsafeAnnotations)
			}
		}
		if s.Stop.Signal < 1 || s.Stop.Signal > lastSignal || s.Stop.Grace < 0 || s.Stop.Grace > MaxTimeout {
			t.Errorf("table.Parse(%q) = %+v, out of range", spec.Annotations, s)
		}
		if strings.Contains(s.VerdictFile.Text, "{id}") {
			t.Errorf("table.Parse(%q) = %+v", spec.Annotations, s)
		}
	})
}

func FuzzCheckAnnotations(f *testing.F) {
	f.Add("stop-signal", true)
	f.Add("", true)
	f.Fuzz(func(t *testing.T, name string, prefixed bool) {
		key := name
		if prefixed {
			key = Prefix + name
		}
		err := table.CheckAnnotations(map[string]string{key: "x"})
		known := !strings.HasPrefix(key, Prefix) ||
			slices.ContainsFunc(table, func(a Setting) bool { return Prefix+a.Name == key })
		if (err == nil) != known || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("table.CheckAnnotations(%q) = %v, known: %t", key, err, known)
		}
	})
}
