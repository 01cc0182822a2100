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
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
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

// ttrpc closes a connection rather than send too long an answer.
func TestIntercept_RefusesAnAnswerThatIsTooLong(t *testing.T) {
	for _, length := range []int{mostAnswer, mostAnswer + 1} {
		answer := &anypb.Any{Value: make([]byte, length-5)} // and five bytes of tag and length
		call := func(context.Context, func(any) error) (any, error) { return answer, nil }
		got, err := Intercept(context.Background(), nil, &ttrpc.UnaryServerInfo{FullMethod: "/s/M"}, call)
		if refused := length > mostAnswer; refused != (status.Code(err) == codes.ResourceExhausted) || refused != (got == nil) {
			t.Errorf("an answer of %d bytes: %v, %v", proto.Size(answer), got != nil, err)
		}
	}
}
