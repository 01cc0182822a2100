// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"unicode"

	api "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/pkg/internal/testx"
)

// classes are those that an error can have, and the codes that containerd knows
// them by.
var classes = []struct {
	class error
	code  codes.Code
}{
	{errdefs.ErrInvalidArgument, codes.InvalidArgument},
	{errdefs.ErrNotFound, codes.NotFound},
	{errdefs.ErrAlreadyExists, codes.AlreadyExists},
	{errdefs.ErrFailedPrecondition, codes.FailedPrecondition},
	{errdefs.ErrUnavailable, codes.Unavailable},
	{errdefs.ErrNotImplemented, codes.Unimplemented},
	{errdefs.ErrPermissionDenied, codes.PermissionDenied},
	{errdefs.ErrResourceExhausted, codes.ResourceExhausted},
	{errdefs.ErrAborted, codes.Aborted},
	{errdefs.ErrOutOfRange, codes.OutOfRange},
	{errdefs.ErrInternal, codes.Internal},
	{errdefs.ErrDataLoss, codes.DataLoss},
	{errdefs.ErrUnauthenticated, codes.Unauthenticated},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{errors.New("of no class"), codes.Unknown},
}

func interceptError(err error) error {
	call := func(context.Context, func(any) error) (any, error) { return (*emptypb.Empty)(nil), err }
	_, got := Intercept(context.Background(), nil, &ttrpc.UnaryServerInfo{FullMethod: "/s/M"}, call)
	return got
}

func TestIntercept_MapsClasses(t *testing.T) {
	for _, tc := range classes {
		text := tc.class.Error()
		end, joined := ": "+text, "a\nundo: "+text // clients look for the class at the end
		if tc.code == codes.Unknown {
			joined = "a: " + text + "\nundo"
		}
		if tc.code == codes.InvalidArgument || tc.code == codes.FailedPrecondition { // the code is enough
			end, joined = "", "a\nundo"
		}
		for name, tt := range map[string]struct {
			err  error
			want string
		}{
			"bare":    {tc.class, text},
			"wrapped": {fmt.Errorf("a: %w", fmt.Errorf("b: %w", tc.class)), "a: b" + end},
			"last of two": {
				fmt.Errorf("field: %w: %w", fs.ErrNotExist, tc.class), "field: file does not exist" + end,
			},
			"joined with an undoing": {errors.Join(fmt.Errorf("a: %w", tc.class), errors.New("undo")), joined},
		} {
			got, ok := status.FromError(interceptError(tt.err))
			if !ok || got.Code() != tc.code {
				t.Errorf("%v, %s: code %v, want %v", tc.class, name, got.Code(), tc.code)
			}
			if got.Message() != tt.want {
				t.Errorf("%v, %s: text %q, want %q", tc.class, name, got.Message(), tt.want)
			}
			if details := got.Details(); len(details) > 0 {
				t.Errorf("%v, %s: details %v, want none", tc.class, name, details)
			}
		}
	}
	if err := interceptError(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	already := status.Error(codes.DataLoss, "x")
	if got := status.Code(interceptError(already)); got != codes.DataLoss {
		t.Errorf("a status became %v", got)
	}
}

// What a person reads at last: containerd makes an error of the shim's status, adds words, and makes a status of its
// own, of which its client makes an error. Releases before 2.0 do the same without details.
func TestIntercept_TextIsOneSentenceToTheLastClient(t *testing.T) {
	const program = `process.args[0] "/no/such"`
	for _, tc := range []struct {
		name  string
		err   error
		class error
		want  string
	}{
		{
			"its class beside its cause", fmt.Errorf(
				"%s: %w: %w", program, fs.ErrNotExist, errdefs.ErrInvalidArgument,
			), errdefs.ErrInvalidArgument,
			program + ": file does not exist",
		},
		{"ids around", fmt.Errorf("container %q: exec %q: a: %w", "c1", "e1", errdefs.ErrInvalidArgument), errdefs.ErrInvalidArgument, "a"},
		{"a pod's id", fmt.Errorf("sandbox %q: a: %w", "p", errdefs.ErrAborted), errdefs.ErrAborted, "a: aborted"},
		{
			"the id of what is absent", fmt.Errorf("container %q: exec %q: %w", "c1", "e1", errdefs.ErrNotFound),
			errdefs.ErrNotFound, `container "c1": exec "e1": not found`,
		},
		{
			"the id of another container", fmt.Errorf("sandbox %q: stop: container %q: %w", "p", "c1", errdefs.ErrInvalidArgument),
			errdefs.ErrInvalidArgument, `stop: container "c1"`,
		},
		{
			"the kernel's words are those of the class", fmt.Errorf(
				"write %q: %w: %w", "many", unix.EINVAL, errdefs.ErrInvalidArgument,
			), errdefs.ErrInvalidArgument,
			`write "many": invalid argument`,
		},
		{
			"the kernel's words only", fmt.Errorf("write %q: %w", "many", unix.EINVAL), errdefs.ErrUnknown,
			`write "many": invalid argument`,
		},
		{
			"an undoing that fails", errors.Join(
				fmt.Errorf("a: %w: %w", fs.ErrExist, errdefs.ErrFailedPrecondition), errors.New("undo: busy"),
			), errdefs.ErrFailedPrecondition,
			"a: file already exists\nundo: busy",
		},
		{
			"an undoing of another class", errors.Join(
				fmt.Errorf("a: %w", errdefs.ErrNotFound), fmt.Errorf("undo: %w", errdefs.ErrInternal),
			), errdefs.ErrNotFound,
			"a\nundo: internal: not found",
		},
		{"the class alone", errdefs.ErrNotFound, errdefs.ErrNotFound, "not found"},
		{
			"a context beside its cause", fmt.Errorf(
				"ready: %w: %w", errors.New("no answer"), context.DeadlineExceeded,
			), context.DeadlineExceeded,
			"ready: no answer: context deadline exceeded",
		},
	} {
		containerd := errgrpc.ToNative(interceptError(tc.err))
		if got := containerd.Error(); got != tc.want {
			t.Errorf("%s: containerd reads %q, want %q", tc.name, got, tc.want)
		}
		last := errgrpc.ToNative(errgrpc.ToGRPC(fmt.Errorf("failed to create shim task: %w", containerd)))
		want := "failed to create shim task: " + tc.want
		if got := last.Error(); got != want {
			t.Errorf("%s: its client reads %q, want %q", tc.name, got, want)
		}
		if !errors.Is(last, tc.class) {
			t.Errorf("%s: %v is of class %v, want %v", tc.name, last, errdefs.Resolve(last), tc.class)
		}
	}
}

func TestIntercept_PanicEndsOneCallOnly(t *testing.T) {
	w := newEnv(t, taskV2)
	w.create("c1")
	w.runtime.Panic("update")
	request := &api.UpdateTaskRequest{ID: "c1", Resources: packJSON(t, "LinuxResources", struct{}{})}
	err := w.call("Update", request, void)
	if !errdefs.IsInternal(err) {
		t.Errorf("Update = %v, want an internal error", err)
	}
	testx.WantText(t, err, "/containerd.task.v2.Task/Update")
	if strings.Contains(err.Error(), "a bug in") {
		t.Errorf("the error tells what is for the log: %v", err)
	}
	w.runtime.Fail("update", nil)
	w.must("State", &api.StateRequest{ID: "c1"}, &api.StateResponse{})
	w.must("Update", request, void) // the container's turn was given back
	w.must("Delete", &api.DeleteRequest{ID: "c1"}, &api.DeleteResponse{})
}

func TestTask_UnknownIDs(t *testing.T) {
	w := newEnv(t, taskV2)
	w.create("c1")
	spec := packJSON(t, "Process", goodProcess())
	for _, rpc := range []struct {
		method  string
		request func(id, execID string) proto.Message
		exec    bool // takes the id of an exec
	}{
		{"State", func(id, e string) proto.Message { return &api.StateRequest{ID: id, ExecID: e} }, true},
		{"Start", func(id, e string) proto.Message { return &api.StartRequest{ID: id, ExecID: e} }, true},
		{"Delete", func(id, e string) proto.Message { return &api.DeleteRequest{ID: id, ExecID: e} }, true},
		{"Kill", func(id, e string) proto.Message { return &api.KillRequest{ID: id, ExecID: e, Signal: 9} }, true},
		{"ResizePty", func(id, e string) proto.Message { return &api.ResizePtyRequest{ID: id, ExecID: e} }, true},
		{"CloseIO", func(id, e string) proto.Message { return &api.CloseIORequest{ID: id, ExecID: e} }, true},
		{"Wait", func(id, e string) proto.Message { return &api.WaitRequest{ID: id, ExecID: e} }, true},
		{"Pids", func(id, _ string) proto.Message { return &api.PidsRequest{ID: id} }, false},
		{"Pause", func(id, _ string) proto.Message { return &api.PauseRequest{ID: id} }, false},
		{"Resume", func(id, _ string) proto.Message { return &api.ResumeRequest{ID: id} }, false},
		{"Checkpoint", func(id, _ string) proto.Message { return &api.CheckpointTaskRequest{ID: id} }, false},
		{
			"Exec",
			func(id, _ string) proto.Message { return &api.ExecProcessRequest{ID: id, ExecID: "e", Spec: spec} }, false,
		},
		{"Update", func(id, _ string) proto.Message { return &api.UpdateTaskRequest{ID: id} }, false},
		{"Stats", func(id, _ string) proto.Message { return &api.StatsRequest{ID: id} }, false},
	} {
		err := w.call(rpc.method, rpc.request("nobody", ""), void)
		if !errdefs.IsNotFound(err) {
			t.Errorf("%s of an unknown container = %v, want not found", rpc.method, err)
		}
		testx.WantText(t, err, `"nobody"`)
		if rpc.exec {
			err := w.call(rpc.method, rpc.request("c1", "noexec"), void)
			if !errdefs.IsNotFound(err) {
				t.Errorf("%s of an unknown exec = %v, want not found", rpc.method, err)
			}
			testx.WantText(t, err, `"c1"`, `"noexec"`)
		}
	}
	w.must("Delete", &api.DeleteRequest{ID: "c1"}, &api.DeleteResponse{})
}

// Some of each kind: the tables of pkg/task and pkg/process have what they refuse.
func TestTask_RefusesRequests(t *testing.T) {
	w := newEnv(t, taskV2)
	w.create("c1")
	for _, tc := range []struct {
		method  string
		request proto.Message
		class   error
		want    []string
	}{
		{"Create", &api.CreateTaskRequest{ID: "c1", Bundle: newBundle(t)}, errdefs.ErrAlreadyExists, []string{`"c1"`}},
		{"Create", &api.CreateTaskRequest{ID: "a/b", Bundle: newBundle(t)}, errdefs.ErrInvalidArgument, []string{"id", `"a/b"`}},
		{
			"Create", &api.CreateTaskRequest{ID: "c2", Bundle: newBundle(t), Options: &anypb.Any{TypeUrl: "x.Options"}},
			errdefs.ErrInvalidArgument,
			[]string{"options", "x.Options"},
		},
		{"Kill", &api.KillRequest{ID: "c1", Signal: 65}, errdefs.ErrInvalidArgument, []string{"signal 65", "64"}},
		{"Kill", &api.KillRequest{ID: "c1", Signal: math.MaxUint32}, errdefs.ErrInvalidArgument, []string{"4294967295"}},
		{"ResizePty", &api.ResizePtyRequest{ID: "c1", Width: 65536, Height: 2}, errdefs.ErrInvalidArgument, []string{"65536x2", "65535"}},
		{"ResizePty", &api.ResizePtyRequest{ID: "c1", Width: 1, Height: 2}, errdefs.ErrFailedPrecondition, []string{"terminal"}},
		{"Exec", &api.ExecProcessRequest{ID: "c1", ExecID: "e"}, errdefs.ErrInvalidArgument, []string{"spec", "Process"}},
		{
			"Exec", &api.ExecProcessRequest{ID: "c1", ExecID: "../e", Spec: packJSON(t, "Process", goodProcess())},
			errdefs.ErrInvalidArgument,
			[]string{"exec id", `"../e"`},
		},
		{"Update", &api.UpdateTaskRequest{ID: "c1"}, errdefs.ErrInvalidArgument, []string{"resources", "LinuxResources"}},
		{"Resume", &api.ResumeRequest{ID: "c1"}, errdefs.ErrFailedPrecondition, []string{"cannot resume: the process is created"}},
	} {
		testx.WantError(t, w.call(tc.method, tc.request, void), tc.class, tc.want...)
	}
	w.must("Delete", &api.DeleteRequest{ID: "c1"}, &api.DeleteResponse{})
}

// An answer that cannot be sent would end containerd's connection, and with it the container.
func TestError_WithAnyTextIsAnswered(t *testing.T) {
	for name, text := range map[string]string{
		"not UTF-8": "file \xff", "escape sequences": "process \x1b[2J\u009b2J\a\r",
		"long": strings.Repeat("x", 5<<20), "long, not ASCII": strings.Repeat("€", 2<<20),
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, taskV3)
			w.create("c1")
			w.must("Start", &api.StartRequest{ID: "c1"}, &api.StartResponse{})
			w.runtime.Fail("pause", fmt.Errorf("%s: %w", text, errdefs.ErrFailedPrecondition))
			err := w.call("Pause", &api.PauseRequest{ID: "c1"}, empty)
			got := fmt.Sprint(err)
			if !errdefs.IsFailedPrecondition(err) || len(got) > mostText+64 || !strings.Contains(got, text[:3]) {
				t.Errorf("Pause = %.200q, of %d bytes, want the text and its class", got, len(got))
			}
			if i := strings.IndexFunc(got, unicode.IsControl); i >= 0 {
				t.Errorf("Pause = %.200q, with a control character at %d", got, i)
			}
			w.must("State", &api.StateRequest{ID: "c1"}, &api.StateResponse{})
		})
	}
}

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
