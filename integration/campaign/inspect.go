// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"sandbox.internal/shim/integration/harness"
)

// inspected is what a shim of this project tells of itself (pkg/service/inspect.proto, pkg/inspect).
type inspected struct {
	Shim struct {
		Goroutines int `json:"goroutines"`
		Events     struct {
			Waiting int `json:"waiting"`
		} `json:"events"`
	} `json:"shim"`
}

// inspect asks the shim of a bundle. The connection is not kept: it would be one that the shim did not have before.
func inspect(ctx context.Context, bundle string) (told inspected, err error) {
	address, err := harness.ShimAddress(bundle)
	if err != nil {
		return told, err
	}
	ctx, cancel := context.WithTimeout(ctx, harness.Slow(10*time.Second))
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
	if err != nil {
		return told, err
	}
	c := ttrpc.NewClient(conn)
	defer func() { _ = c.Close() }() // it has answered
	var answer wrapperspb.BytesValue // whose only field is bytes, as that of the shim's answer: JSON
	err = c.Call(ctx, "io.containerd.sandbox.v1.Inspect", "Inspect", &emptypb.Empty{}, &answer)
	if err == nil {
		err = json.Unmarshal(answer.GetValue(), &told)
	}
	if err != nil {
		err = fmt.Errorf("inspect: %w", err)
	}
	return told, err
}
