// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

// row is a setting of the OCI configuration and a shell script, run in a container that has it, which prints its
// effect.
type row struct {
	name   string
	opts   []oci.SpecOpts
	script string
	want   string // standard output
	needs  string // a file that a kernel without the feature has not; empty: every kernel has it
}

// runRows runs a container for each row, some at a time.
func runRows(t *testing.T, rows []row) {
	t.Helper()
	parent := newEnv(t)
	for i, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			if tt.needs != "" {
				needKernel(t, tt.needs)
			}
			e := parent.sub(t)
			c := e.run(fmt.Sprintf("r%d", i), config{opts: tt.opts}, "sh", "-c", tt.script)
			c.wantExit(0)
			if got := c.out.String(); got != tt.want {
				t.Errorf("stdout = %q, want %q; stderr %q", got, tt.want, c.err)
			}
		})
	}
}

// sub is e for a subtest that may run beside others. The containers of the subtest end with it; leaks are looked for
// when all subtests have ended.
func (e *env) sub(t *testing.T) *env {
	t.Helper()
	t.Parallel()
	sub := *e
	sub.TB = t
	return &sub
}

// refusal is a setting that the kernel or the runtime cannot have, and what the error must say.
type refusal struct {
	name  string
	opts  []oci.SpecOpts
	words []string // all of them, in either case of letters
	class error    // nil: any
}

// wantRefused makes and, where that succeeds, starts a container for each row, and wants an error of one of the two.
// That a refused container leaves nothing is for the leak check to see.
func wantRefused(t *testing.T, rows []refusal) {
	t.Helper()
	parent := newEnv(t)
	for i, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			e := parent.sub(t)
			c, err := e.tryCreate(fmt.Sprintf("r%d", i), config{opts: tt.opts}, "true")
			if err == nil {
				e.Cleanup(c.closeIO)
				err = c.process.Start(e.ctx)
			}
			wantError(t, err, tt.class, tt.words...)
		})
	}
}

// wantError checks the class of an error, which only the runtime of this project promises, and the words in it.
func wantError(t *testing.T, err, class error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("error = nil, want one with %q", words)
		return
	}
	for _, word := range words {
		if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(word)) {
			t.Errorf("error = %q, want %q in it", err, word)
		}
	}
	if class != nil && !errors.Is(err, class) && harness.Runtime() == harness.Ours {
		t.Errorf("error = %v, of class %v, want %v", err, errdefs.Resolve(err), class)
	}
}

// needKernel skips a test of what this kernel was built without. A file that every supported kernel has is never
// skipped over.
func needKernel(t *testing.T, file string) {
	t.Helper()
	if _, err := os.Stat(file); err != nil {
		t.Skipf("CANNOT RUN HERE: the kernel lacks what this test is about: %v", err)
	}
}

// spec makes an option of a change to the whole configuration.
func spec(change func(*oci.Spec)) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		change(s)
		return nil
	}
}

// with is opts as a list, for tables.
func with(opts ...oci.SpecOpts) []oci.SpecOpts { return opts }

// clientSpec is the configuration of the test image with opts.
func clientSpec(e *env, opts ...oci.SpecOpts) client.NewContainerOpts {
	return client.WithNewSpec(append([]oci.SpecOpts{oci.WithImageConfig(e.image)}, opts...)...)
}
