// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
)

// Intercept is around every call: the one place where errors become statuses.
// A panic is a bug of ours; it is logged with its stack and answered as
// errdefs.ErrInternal, because the other containers of the pod must live on.
func Intercept(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, call ttrpc.Method) (answer any, err error) {
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			log.L.WithField("call", info.FullMethod).Errorf("panic: %v\n%s", p, debug.Stack())
			answer, err = nil, errgrpc.ToGRPC(fmt.Errorf("%s: panic, see the shim's log: %w", info.FullMethod, errdefs.ErrInternal))
		}
		if log.L.Logger.IsLevelEnabled(log.DebugLevel) {
			log.L.WithField("call", info.FullMethod).WithField("took", time.Since(start)).WithError(err).Debug("answered")
		}
	}()
	answer, err = call(ctx, unmarshal)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return answer, nil
}
