// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/options"
)

// asked is what one container asks for, by annotations without their prefix and by options.
type asked struct {
	annotations map[string]string
	options     options.Options
}

func (a asked) spec() *specs.Spec {
	spec := goodSpec()
	spec.Annotations = map[string]string{}
	for key, value := range a.annotations {
		spec.Annotations[annotationPrefix+key] = value
	}
	return spec
}

// allowing are the options, and all annotations are allowed.
func allowing(o options.Options) options.Options {
	o.AllowUnsafeAnnotations = unsafeNames()
	return o
}

// wantRefused wants Create to refuse each value by its key, and to leave nothing.
func wantRefused(t *testing.T, rows map[string]asked) {
	t.Helper()
	for want, a := range rows {
		bundle := newBundle(t, a.spec())
		before := files(t, bundle)
		_, err := newManager(t, &fakeEngine{}).Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: allowing(a.options)})
		wantInvalid(t, err, want)
		if got := files(t, bundle); got != before {
			t.Errorf("files = %q after %v, want %q", got, err, before)
		}
	}
}
