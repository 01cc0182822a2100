// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"sandbox.internal/shim/pkg/idmap"
)

// BenchmarkPod is one pod made, started and closed, with the sysctls that CRI's pods have.
func BenchmarkPod(b *testing.B) {
	users := &idmap.Mappings{UIDs: mapping, GIDs: mapping}
	for name, config := range map[string]Config{
		"main thread": {Hostname: "web-0", PID: ModeContainer},
		"process":     {Hostname: "web-0", PID: ModePod},
		"users":       {Hostname: "web-0", PID: ModePod, User: users},
	} {
		config.addDefaultSysctls()
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			for i := range b.N {
				bundle := filepath.Join(dir, strconv.Itoa(i))
				if err := os.Mkdir(bundle, 0o700); err != nil {
					b.Fatal(err)
				}
				p, err := Create(b.Context(), Request{ID: "p1", Bundle: bundle, Config: config, Reaper: testReaper}, thread)
				if err != nil {
					b.Fatal(err)
				}
				if err := p.Start(b.Context()); err != nil {
					b.Fatal(err)
				}
				if err := p.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
