// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// hostileForCriu are root file systems with links that exchange what CRIU binds (CVE-2026-119101, CVE-2026-115520).
var hostileForCriu = []struct {
	name string
	make func(t *testing.T, rootfs string)
	want string
}{
	{"a place that ends in the middle", func(t *testing.T, rootfs string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Join(rootfs, "a]:/etc"), 0o755))
		must(t, os.Symlink("a]:/etc", filepath.Join(rootfs, "data")))
	}, "a]:/etc"},
	{"a part of the way that ends in the middle", func(t *testing.T, rootfs string) {
		t.Helper()
		must(t, os.Mkdir(filepath.Join(rootfs, "]:"), 0o755))
		must(t, os.Symlink("/]:/new", filepath.Join(rootfs, "data")))
	}, "]:/new"},
	{"the place of another mount", func(t *testing.T, rootfs string) {
		t.Helper()
		must(t, os.Mkdir(filepath.Join(rootfs, "secret"), 0o755))
		must(t, os.Symlink("secret", filepath.Join(rootfs, "data")))
	}, "/secret"},
}

func bindBoth(t *testing.T, c *process.Config) {
	t.Helper()
	for _, destination := range []string{"/secret", "/data"} {
		mount(specs.Mount{Destination: destination, Type: "bind", Source: t.TempDir(), Options: []string{"bind"}})(c)
	}
}

func TestRestore_RefusesLinksThatExchangeMounts(t *testing.T) {
	for _, h := range hostileForCriu {
		t.Run(h.name, func(t *testing.T) {
			fakeCriu(t) // whose error would be another
			c := image(t)
			h.make(t, c.Rootfs)
			bindBoth(t, &c)
			r, err := testRuntime.Create(t.Context(), c, nil)
			must(t, err)
			streams, err := stdio.Open(t.Context(), c.IO, c.IOOwner)
			must(t, err)
			t.Cleanup(func() { must(t, streams.Close()) })
			_, err = r.Restore(t.Context(), streams)
			wantError(t, err, errdefs.ErrFailedPrecondition, `"/data"`, h.want)
			must(t, r.Destroy())
			wantNothingLeft(t, c)
		})
	}
}

func TestCheckpoint_RefusesLinksThatExchangeMounts(t *testing.T) {
	for _, h := range hostileForCriu {
		t.Run(h.name, func(t *testing.T) {
			fakeCriu(t)
			c := newConfig(t, "sleep", "1000")
			must(t, os.MkdirAll(filepath.Join(c.Rootfs, "secret"), 0o755))
			must(t, os.MkdirAll(filepath.Join(c.Rootfs, "data"), 0o755))
			bindBoth(t, &c)
			b := create(t, c)
			b.start()
			// The container has exchanged it since.
			must(t, os.Remove(filepath.Join(c.Rootfs, "data")))
			must(t, os.Remove(filepath.Join(c.Rootfs, "secret")))
			h.make(t, c.Rootfs)
			path := filepath.Join(t.TempDir(), "image")
			err := b.Checkpoint(process.CheckpointRequest{Path: path})
			wantError(t, err, errdefs.ErrFailedPrecondition, `"/data"`, h.want)
		})
	}
}
