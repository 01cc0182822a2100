// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"os"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v2"
	runc "github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/internal/testx"
)

var void = &emptypb.Empty{}

// TestTask_Life calls everything once, under both names of the service.
func TestTask_Life(t *testing.T) {
	for _, name := range []string{taskV2, taskV3} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, name)
			pid := uint32(w.runtime.PID)
			bundle := newBundle(t)
			created := &api.CreateTaskResponse{}
			w.must("Create", &api.CreateTaskRequest{ID: "c1", Bundle: bundle}, created)
			wantEqual(t, "Create", created, &api.CreateTaskResponse{Pid: pid})
			w.wantState("", &api.StateResponse{ID: "c1", Bundle: bundle, Pid: pid, Status: tasktypes.Status_CREATED, ExitedAt: notExited()})

			started := &api.StartResponse{}
			w.must("Start", &api.StartRequest{ID: "c1"}, started)
			wantEqual(t, "Start", started, &api.StartResponse{Pid: pid})
			w.wantState("", &api.StateResponse{ID: "c1", Bundle: bundle, Pid: pid, Status: tasktypes.Status_RUNNING, ExitedAt: notExited()})

			connected := &api.ConnectResponse{}
			w.must("Connect", &api.ConnectRequest{ID: "c1"}, connected)
			wantEqual(t, "Connect", connected, &api.ConnectResponse{ShimPid: uint32(os.Getpid()), TaskPid: pid})
			unknown := &api.ConnectResponse{}
			w.must("Connect", &api.ConnectRequest{ID: "nobody"}, unknown)
			wantEqual(t, "Connect to an unknown id", unknown, &api.ConnectResponse{ShimPid: uint32(os.Getpid())})

			w.must("Pause", &api.PauseRequest{ID: "c1"}, void)
			w.wantState("", &api.StateResponse{ID: "c1", Bundle: bundle, Pid: pid, Status: tasktypes.Status_PAUSED, ExitedAt: notExited()})
			w.must("Resume", &api.ResumeRequest{ID: "c1"}, void)

			limit := int64(7)
			w.must(
				"Update",
				&api.UpdateTaskRequest{
					ID: "c1",
					Resources: packJSON(
						t, "LinuxResources", specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}},
					),
				},
				void,
			)
			if got, _ := w.runtime.Containers()[0].Written(); got == nil || got.Pids == nil || *got.Pids.Limit != limit || got.Memory != nil {
				t.Errorf("Update asked for %+v", got)
			}
			w.exec(bundle)
			stats := &api.StatsResponse{}
			w.must("Stats", &api.StatsRequest{ID: "c1"}, stats)
			want := "io.containerd.cgroups.v1.Metrics"
			if w.runtime.Group.Unified() {
				want = "io.containerd.cgroups.v2.Metrics"
			}
			if got := stats.GetStats().GetTypeUrl(); got != want {
				t.Errorf("Stats answers with a %q, want %q", got, want)
			}
			w.must("CloseIO", &api.CloseIORequest{ID: "c1", Stdin: true}, void)
			w.must("CloseIO", &api.CloseIORequest{ID: "c1"}, void)
			w.must("Shutdown", &api.ShutdownRequest{ID: "c1"}, void) // has no effect yet

			w.must("Kill", &api.KillRequest{ID: "c1", Signal: 15}, void)
			w.must("Kill", &api.KillRequest{ID: "c1", Signal: 9}, void)
			waited := &api.WaitResponse{}
			w.must("Wait", &api.WaitRequest{ID: "c1"}, waited)
			at := waited.ExitedAt
			if waited.ExitStatus != 137 || time.Since(at.AsTime()) > time.Minute {
				t.Errorf("Wait = %v, want status 137 and the time", waited)
			}
			w.wantState(
				"",
				&api.StateResponse{
					ID: "c1", Bundle: bundle, Pid: pid, Status: tasktypes.Status_STOPPED, ExitStatus: 137, ExitedAt: at,
				},
			)
			deleted := &api.DeleteResponse{}
			w.must("Delete", &api.DeleteRequest{ID: "c1"}, deleted)
			wantEqual(t, "Delete", deleted, &api.DeleteResponse{Pid: pid, ExitStatus: 137, ExitedAt: at})

			select {
			case <-w.box.Done():
				t.Error("Shutdown took effect before")
			default:
			}
			w.must("Shutdown", &api.ShutdownRequest{ID: "c1"}, void)
			<-w.box.Done()
		})
	}
}

func (w *env) wantState(execID string, want *api.StateResponse) {
	w.t.Helper()
	got := &api.StateResponse{}
	w.must("State", &api.StateRequest{ID: "c1", ExecID: execID}, got)
	wantEqual(w.t, "State", got, want)
}

func (w *env) exec(bundle string) {
	t, pid := w.t, uint32(w.runtime.PID)
	t.Helper()
	p := goodProcess()
	p.Terminal = true // the request says otherwise, and counts
	w.must("Exec", &api.ExecProcessRequest{ID: "c1", ExecID: "e1", Spec: packJSON(t, "Process", p)}, void)
	w.wantState("e1", &api.StateResponse{ID: "e1", Bundle: bundle, Status: tasktypes.Status_CREATED, ExitedAt: notExited()})
	started := &api.StartResponse{}
	w.must("Start", &api.StartRequest{ID: "c1", ExecID: "e1"}, started)
	wantEqual(t, "Start of an exec", started, &api.StartResponse{Pid: pid})
	_, asked := w.runtime.Containers()[0].Execs()
	if got := asked[0]; got.Terminal || got.Args[0] != "true" {
		t.Errorf("the engine was asked to run %+v", got)
	}
	pids := &api.PidsResponse{}
	w.must("Pids", &api.PidsRequest{ID: "c1"}, pids)
	details, err := proto.Marshal(&runc.ProcessDetails{ExecID: "e1"})
	testx.Must(t, err)
	wantEqual(t, "Pids", pids, &api.PidsResponse{Processes: []*tasktypes.ProcessInfo{
		{Pid: pid, Info: &anypb.Any{TypeUrl: "containerd.runc.v1.ProcessDetails", Value: details}},
	}})
	w.must("Kill", &api.KillRequest{ID: "c1", ExecID: "e1", Signal: 9}, void)
	w.must("Wait", &api.WaitRequest{ID: "c1", ExecID: "e1"}, &api.WaitResponse{})
	deleted := &api.DeleteResponse{}
	w.must("Delete", &api.DeleteRequest{ID: "c1", ExecID: "e1"}, deleted)
	if deleted.Pid != pid || deleted.ExitStatus != 137 || deleted.ExitedAt == nil {
		t.Errorf("Delete of an exec = %v", deleted)
	}
}

func TestWait_EndsWithItsContext(t *testing.T) {
	w := newEnv(t, taskV2)
	w.create("c1")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err := w.client.Call(ctx, w.name, "Wait", &api.WaitRequest{ID: "c1"}, &api.WaitResponse{})
	if err == nil {
		t.Error("Wait of a container that lives succeeded")
	}
	w.must("State", &api.StateRequest{ID: "c1"}, &api.StateResponse{})
	w.must("Delete", &api.DeleteRequest{ID: "c1"}, &api.DeleteResponse{})
}

func TestTask_RefusesBytesThatAreNoMessage(t *testing.T) {
	w := newEnv(t, taskV2)
	// An id that is no UTF-8; the class is ttrpc's choice.
	err := w.call("State", &anypb.Any{TypeUrl: "c1\xff"}, &api.StateResponse{})
	if err == nil || errdefs.IsNotFound(err) {
		t.Errorf("State = %v, want that it cannot be decoded", err)
	}
	if err := w.call("NoSuchMethod", void, void); !errdefs.IsNotImplemented(err) {
		t.Errorf("an unknown method = %v, want not implemented", err)
	}
}

// notExited is the time of the exit of a process that lives: it IsZero.
func notExited() *timestamppb.Timestamp { return timestamppb.New(time.Time{}) }
