// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Whoever opens, clones or writes adds a class to whatever went wrong. Want of resources is not the caller's mistake.
func TestIntercept_WantOfResourcesIsToldAsSuch(t *testing.T) {
	const want = "resource exhausted"
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.ENOSPC} {
		for _, tc := range []struct {
			class error
			code  codes.Code
		}{
			{errors.New("of no class"), codes.ResourceExhausted},
			{errdefs.ErrInvalidArgument, codes.ResourceExhausted},
			{errdefs.ErrFailedPrecondition, codes.ResourceExhausted},
			{errdefs.ErrNotFound, codes.NotFound},
			{context.DeadlineExceeded, codes.DeadlineExceeded},
		} {
			if errno == unix.ENOSPC && errors.Is(tc.class, errdefs.ErrFailedPrecondition) {
				tc.code = codes.FailedPrecondition // a cpuset that does not fit
			}
			got, _ := status.FromError(interceptError(fmt.Errorf("a: %w: %w", os.NewSyscallError("open", errno), tc.class)))
			if got.Code() != tc.code {
				t.Errorf("%v, %v: code %v, want %v", errno, tc.class, got.Code(), tc.code)
			}
			text, class, ok := strings.Cut(got.Message(), want)
			if exhausted := tc.code == codes.ResourceExhausted; ok != exhausted || class != "" {
				t.Errorf("%v, %v: text %q, want %q at its end: %v", errno, tc.class, got.Message(), want, exhausted)
			}
			if ok && strings.Contains(text, errdefs.ErrFailedPrecondition.Error()) {
				t.Errorf("%v, %v: text %q has the class of before", errno, tc.class, got.Message())
			}
		}
	}
}
