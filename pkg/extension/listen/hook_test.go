// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/extension/initproc"
	"sandbox.internal/shim/pkg/options"
)

func TestExtension_IsRefusedBesideAnInit(t *testing.T) {
	for _, tc := range []struct {
		init, listen string
		others       extension.List
		refused      bool
	}{
		{"true", "tcp://0.0.0.0:1", extension.List{initproc.Extension()}, true},
		{"false", "tcp://0.0.0.0:1", extension.List{initproc.Extension()}, false},
		{"true", "none", extension.List{initproc.Extension()}, false},
		{"true", "tcp://0.0.0.0:1", nil, false}, // a program without that extension
	} {
		all := append(tc.others, Extension())
		o := options.Options{Settings: map[string]string{"Init": tc.init, "Listen": tc.listen}}
		set, err := all.Settings().Parse(&specs.Spec{}, o, "ns", "c1")
		if err != nil {
			t.Fatal(err)
		}
		_, err = all.New(set.Values)
		if refused := errdefs.IsInvalidArgument(err); refused != tc.refused || refused && !strings.Contains(err.Error(), "not possible with an init") {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
