// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
)

// Intercept is around every call: the one place where errors become statuses.
// A panic is a bug of ours; it is logged with its stack and answered as
// errdefs.ErrInternal, because the other containers of the pod must live on.
func Intercept(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, call ttrpc.Method) (answer any, err error) {
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			log.L.WithField("call", info.FullMethod).Errorf("panic: %v\n%s", p, debug.Stack())
			answer, err = nil, toStatus(fmt.Errorf("%s: panic, see the shim's log: %w", info.FullMethod, errdefs.ErrInternal))
		}
		if log.L.Logger.IsLevelEnabled(log.DebugLevel) {
			log.L.WithField("call", info.FullMethod).WithField("took", time.Since(start)).WithError(err).Debug("answered")
		}
	}()
	answer, err = call(ctx, unmarshal)
	if err != nil {
		return nil, toStatus(err)
	}
	return answer, nil
}

// toStatus makes a status of err: the code of its class, its text, and no details. Containerd and its client each put the texts
// of details at the end of the message again, and there a class that stands beside a cause (%w: %w) is told once more by each.
func toStatus(err error) error {
	s := status.Convert(errgrpc.ToGRPC(err))
	return status.Error(s.Code(), classAtEnd(s.Message(), errdefs.Resolve(err).Error()))
}

// classAtEnd is text with the name of its class once, at the end, where clients look for it to take it off and put it back. In
// text it may end several lines, when an undoing failed as well, or come twice, when the kernel's words are the same.
func classAtEnd(text, class string) string {
	suffix, found := ": "+class, false
	lines := strings.Split(text, "\n")
	for i := range lines {
		for strings.HasSuffix(lines[i], suffix) {
			lines[i], found = strings.TrimSuffix(lines[i], suffix), true
		}
	}
	if !found {
		return text
	}
	return strings.Join(lines, "\n") + suffix
}
