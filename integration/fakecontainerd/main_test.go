// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/fakecontainerd"
	"sandbox.internal/shim/integration/harness"
)

// env and rootfs are set by TestMain and only read after.
var (
	env    harness.Env
	rootfs string
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if env, err = harness.Require(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if rootfs, err = os.MkdirTemp("", "shim-rootfs-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(rootfs) }()
	if err := os.Chmod(rootfs, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := harness.WriteRootfs(env, rootfs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func newFake(t *testing.T) *fakecontainerd.Fake {
	t.Helper()
	return fakecontainerd.New(t, env, rootfs)
}

// annotate is a change of a spec that sets one annotation.
func annotate(key, value string) func(*specs.Spec) {
	return func(s *specs.Spec) { s.Annotations = map[string]string{key: value} }
}
