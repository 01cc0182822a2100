// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package service serves containerd's APIs over ttrpc: it decodes a request, makes one call, and encodes the answer. It
// also sends events to containerd. Errors carry a class of errdefs from where they arose; only Intercept turns them
// into status codes.
package service

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"time"
	"unicode"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/group"
	"sandbox.internal/shim/pkg/options"
)

// Register adds the services of tasks and sandboxes to server, and this shim's own (inspect.proto). d provides
// the options of containers without any. The two versions of the task service have the same messages.
func Register(server *ttrpc.Server, g *group.Group, d *options.Defaults, s Shim) {
	tasks := (&taskService{g, s.Namespace, d}).methods()
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: tasks})
	server.RegisterService("containerd.task.v3.Task", &ttrpc.ServiceDesc{Methods: tasks})
	server.RegisterService(sandboxServiceName, &ttrpc.ServiceDesc{Methods: (&sandboxService{g}).methods()})
	own := (&inspectService{s, g}).methods()
	server.RegisterService(bootstrap.OwnService, &ttrpc.ServiceDesc{Methods: own})
}

// Intercept wraps every call: it turns an error into a status. A panic is a bug; it is logged with its stack and
// answered as errdefs.ErrInternal, so that the other containers of the pod keep running.
func Intercept(
	ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, call ttrpc.Method,
) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.L.WithField("call", info.FullMethod).Errorf("panic: %v\n%s", p, debug.Stack())
			err = fmt.Errorf("%s: panic, see the shim's log: %w", info.FullMethod, errdefs.ErrInternal)
		}
		if err != nil {
			answer, err = nil, toStatus(err)
		}
	}()
	if answer, err = call(ctx, unmarshal); err == nil {
		err = checkSize(answer)
	}
	return answer, err
}

// mostAnswer is the maximum length of an answer, in bytes. ttrpc closes a connection, and ends all its other calls,
// rather than send a message of more than 4 MiB (channel.go, messageLengthMax).
const mostAnswer = 4<<20 - 1<<10

// checkSize refuses an answer that ttrpc cannot send, such as a list of too many processes.
func checkSize(answer any) error {
	if m, ok := answer.(proto.Message); ok {
		if n := proto.Size(m); n > mostAnswer {
			return fmt.Errorf("the answer has %d bytes, and can have %d: %w", n, mostAnswer, errdefs.ErrResourceExhausted)
		}
	}
	return nil
}

// toStatus returns a status with the code of err's class and err's text, without details: containerd and its client
// each append the texts of details to the message.
func toStatus(err error) error {
	s := status.Convert(errgrpc.ToGRPC(err))
	code, text := s.Code(), spoken(err, s.Message())
	if exhausted(err, code) {
		code, text = codes.ResourceExhausted, text+": "+errdefs.ErrResourceExhausted.Error()
	}
	return status.Error(code, sendable(text))
}

// mostText is about the maximum length of an error's text, in bytes: its beginning, and its end with the class.
const mostText = 32 << 10

// sendable returns the text of an error, which may repeat what a container says, in a form that ttrpc can send: it
// closes the connection otherwise, and containerd then considers the shim dead. Clients print the text: an escape
// sequence would be one for their terminal.
func sendable(text string) string {
	if len(text) > mostText {
		text = text[:mostText/2] + " … " + text[len(text)-mostText/2:]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(text, "?"))
}

// exhausted reports whether err is due to a lack of something that the machine may have again later, whatever class was
// added.
func exhausted(err error, code codes.Code) bool {
	if code != codes.Unknown && code != codes.InvalidArgument && code != codes.FailedPrecondition {
		return false
	}
	// The kernel also uses ENOSPC to refuse CPUs in a control file (pkg/ociruntime/errors.go, stateErrnos).
	return errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) ||
		errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOSPC) && code != codes.FailedPrecondition
}

// spoken returns err's text without the ids of the request, unless the error is about them. The class is named once and
// at the end, where clients look for it; two classes give no reason, so that the code alone names them.
func spoken(err error, text string) string {
	class := errdefs.Resolve(err)
	if !errors.Is(class, errdefs.ErrNotFound) && !errors.Is(class, errdefs.ErrAlreadyExists) {
		text = regexp.MustCompile(`^((sandbox|container|exec) "[^"]*": )+`).ReplaceAllString(text, "")
	}
	end, found := ": "+class.Error(), false
	lines := strings.Split(text, "\n") // more than one if an undo failed as well
	for i, line := range lines {
		bare, ok := strings.CutSuffix(line, end)
		for ok && !errors.Is(err, unix.EINVAL) && strings.HasSuffix(bare, end) { // else the kernel's words stay
			bare = strings.TrimSuffix(bare, end)
		}
		lines[i], found = bare, found || ok
	}
	text = strings.Join(lines, "\n")
	if found && !errors.Is(class, errdefs.ErrInvalidArgument) && !errors.Is(class, errdefs.ErrFailedPrecondition) {
		text += end
	}
	return text
}

// timestamp encodes t, and returns nil if it is not set.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
