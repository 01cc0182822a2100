// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/bootstrap"
)

// featuresURL is the name containerd registers for the OCI features document (core/runtime/typeurl.go); its body is
// JSON. Without it CRI reports no user namespaces and kubelet refuses such pods.
const featuresURL = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

// info answers -info: a containerd.types.RuntimeInfo, with the options read from stdin given back and
// the runtime's features f, nil for none.
func info(stdin *os.File, stdout io.Writer, f *features.Features) error {
	input, err := bootstrap.ReadInput(stdin)
	if err != nil {
		return err
	}
	b := buildOf()
	r := &types.RuntimeInfo{
		Name:    runtimeName,
		Version: &types.RuntimeVersion{Version: b.version, Revision: b.revision},

		Annotations: hostAnnotations(),
	}
	if len(input) > 0 {
		var opts anypb.Any
		if err := proto.Unmarshal(input, &opts); err != nil {
			return fmt.Errorf("decode options on stdin, %d bytes: %w: %w", len(input), err, errdefs.ErrInvalidArgument)
		}
		r.Options = &opts
	}
	if f != nil {
		body, err := json.Marshal(f)
		if err != nil {
			return fmt.Errorf("encode features: %w", err)
		}
		r.Features = &anypb.Any{TypeUrl: featuresURL, Value: body}
	}
	data, err := proto.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode runtime info: %w", err)
	}
	_, err = stdout.Write(data)
	return err
}
