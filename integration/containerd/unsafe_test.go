// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// allow lets the test's containers have these unsafe annotations. Their options are TOML from then on.
func (e *env) allow(names ...string) { e.allowed = append(e.allowed, names...) }

// withOptions gives a container runtime options in the form of TOML.
func withOptions(e *env, text string) []client.NewContainerOpts {
	if len(e.allowed) > 0 {
		text = fmt.Sprintf("AllowUnsafeAnnotations = ['%s']\n", strings.Join(e.allowed, "', '")) + text
	}
	return []client.NewContainerOpts{client.WithRuntime(e.containerd.Env.Runtime, &runtimeoptions.Options{
		TypeUrl: "sandbox", ConfigBody: []byte(text),
	})}
}

// defaultOptions are those of a container of which the test does not say others: none, if they need not be.
func (e *env) defaultOptions() client.NewContainerOpts {
	if len(e.allowed) > 0 {
		return withOptions(e, "")[0]
	}
	return client.WithRuntime(e.containerd.Env.Runtime, nil)
}

func TestUnsafeAnnotations_AreRefusedUnlessAnOptionAllowsThem(t *testing.T) {
	harness.OursOnly(t, "annotations by which a container reaches the host")
	e := newEnv(t)
	pidFile := filepath.Join(publicDir(t), "pid")
	none := client.WithRuntime(e.containerd.Env.Runtime, nil)
	off := withOptions(e, "HostRootfs = 'off'\nListen = 'none'\nAllowUnsafeAnnotations = ['cpuset.source']")[0]
	runc := client.WithRuntime(e.containerd.Env.Runtime, &options.Options{}) // which has no room for the option
	network := oci.WithHostNamespace(specs.NetworkNamespace)
	for i, tt := range []struct {
		name, value string
		options     client.NewContainerOpts
	}{
		{"host-rootfs", "/root:/r:rw", none},
		{"host-rootfs", "/root:/r:rw", off},
		{"host-rootfs.mask", "none", runc},
		{"pid-file", pidFile, none},
		{"pid-file", pidFile, runc},
		{"listen", "tcp://127.0.0.1:1", off},
		{"cpuset.source", "/" + e.namespace, none},
	} {
		key := "io.containerd.sandbox.v1/" + tt.name
		cfg := config{opts: with(network, annotations(key, tt.value)), new: []client.NewContainerOpts{tt.options}}
		_, err := e.tryCreate(fmt.Sprintf("c%d", i), cfg, "true")
		wantError(t, err, errdefs.ErrPermissionDenied, key, fmt.Sprintf("%q", tt.value),
			fmt.Sprintf("AllowUnsafeAnnotations = [%q]", tt.name))
	}
	e.allow("pid-file")
	c := e.run("allowed", config{opts: with(annotations(annotationPidFile, pidFile))}, "true")
	c.wantExit(0)
}
