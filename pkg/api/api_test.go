// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/events"
	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	ttrpcevents "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	"sandbox.internal/shim/pkg/api"
	"sandbox.internal/shim/pkg/api/cgroup1"
	"sandbox.internal/shim/pkg/api/cgroup2"
	"sandbox.internal/shim/pkg/wire"
	"sandbox.internal/shim/pkg/wire/wiretest"
)

// pair is a message of ours, and containerd's.
type pair struct {
	ours   any
	theirs proto.Message
	left   []string            // names of fields that ours does not have
	below  map[string][]string // the same of the message in a field
}

// sandboxLeft are what a shim has no use for in containerd's record of a sandbox.
var sandboxLeft = []string{"sandbox_id", "runtime", "spec", "labels", "created_at", "updated_at", "sandboxer"}

var pairs = []pair{
	{ours: api.Mount{}, theirs: &types.Mount{}},
	{ours: api.Platform{}, theirs: &types.Platform{}},
	{ours: api.Metric{}, theirs: &types.Metric{}},
	{ours: api.Envelope{}, theirs: &types.Envelope{}},
	{ours: api.RuntimeInfo{}, theirs: &types.RuntimeInfo{}},
	{ours: api.RuntimeVersion{}, theirs: &types.RuntimeVersion{}},
	{ours: api.ProcessInfo{}, theirs: &tasktypes.ProcessInfo{}},

	{ours: api.StateRequest{}, theirs: &task.StateRequest{}},
	{ours: api.StateResponse{}, theirs: &task.StateResponse{}},
	{ours: api.CreateTaskRequest{}, theirs: &task.CreateTaskRequest{}},
	{ours: api.CreateTaskResponse{}, theirs: &task.CreateTaskResponse{}},
	{ours: api.StartRequest{}, theirs: &task.StartRequest{}},
	{ours: api.StartResponse{}, theirs: &task.StartResponse{}},
	{ours: api.DeleteRequest{}, theirs: &task.DeleteRequest{}},
	{ours: api.DeleteResponse{}, theirs: &task.DeleteResponse{}},
	{ours: api.PidsRequest{}, theirs: &task.PidsRequest{}},
	{ours: api.PidsResponse{}, theirs: &task.PidsResponse{}},
	{ours: api.PauseRequest{}, theirs: &task.PauseRequest{}},
	{ours: api.ResumeRequest{}, theirs: &task.ResumeRequest{}},
	{ours: api.CheckpointTaskRequest{}, theirs: &task.CheckpointTaskRequest{}},
	{ours: api.KillRequest{}, theirs: &task.KillRequest{}},
	{ours: api.ExecProcessRequest{}, theirs: &task.ExecProcessRequest{}},
	{ours: api.ResizePtyRequest{}, theirs: &task.ResizePtyRequest{}},
	{ours: api.CloseIORequest{}, theirs: &task.CloseIORequest{}},
	{ours: api.UpdateTaskRequest{}, theirs: &task.UpdateTaskRequest{}},
	{ours: api.WaitRequest{}, theirs: &task.WaitRequest{}},
	{ours: api.WaitResponse{}, theirs: &task.WaitResponse{}},
	{ours: api.StatsRequest{}, theirs: &task.StatsRequest{}},
	{ours: api.StatsResponse{}, theirs: &task.StatsResponse{}},
	{ours: api.ConnectRequest{}, theirs: &task.ConnectRequest{}},
	{ours: api.ConnectResponse{}, theirs: &task.ConnectResponse{}},
	{ours: api.ShutdownRequest{}, theirs: &task.ShutdownRequest{}},

	{ours: api.CreateSandboxRequest{}, theirs: &sandbox.CreateSandboxRequest{}},
	{ours: api.CreateSandboxResponse{}, theirs: &sandbox.CreateSandboxResponse{}},
	{ours: api.StartSandboxRequest{}, theirs: &sandbox.StartSandboxRequest{}},
	{ours: api.StartSandboxResponse{}, theirs: &sandbox.StartSandboxResponse{}},
	{ours: api.PlatformRequest{}, theirs: &sandbox.PlatformRequest{}},
	{ours: api.PlatformResponse{}, theirs: &sandbox.PlatformResponse{}},
	{ours: api.StopSandboxRequest{}, theirs: &sandbox.StopSandboxRequest{}},
	{ours: api.StopSandboxResponse{}, theirs: &sandbox.StopSandboxResponse{}},
	{ours: api.UpdateSandboxRequest{}, theirs: &sandbox.UpdateSandboxRequest{}, below: map[string][]string{"sandbox": sandboxLeft}},
	{ours: api.Sandbox{}, theirs: &types.Sandbox{}, left: sandboxLeft},
	{ours: api.UpdateSandboxResponse{}, theirs: &sandbox.UpdateSandboxResponse{}},
	{ours: api.WaitSandboxRequest{}, theirs: &sandbox.WaitSandboxRequest{}},
	{ours: api.WaitSandboxResponse{}, theirs: &sandbox.WaitSandboxResponse{}},
	{ours: api.SandboxStatusRequest{}, theirs: &sandbox.SandboxStatusRequest{}},
	{ours: api.SandboxStatusResponse{}, theirs: &sandbox.SandboxStatusResponse{}},
	{ours: api.PingRequest{}, theirs: &sandbox.PingRequest{}},
	{ours: api.PingResponse{}, theirs: &sandbox.PingResponse{}},
	{ours: api.ShutdownSandboxRequest{}, theirs: &sandbox.ShutdownSandboxRequest{}},
	{ours: api.ShutdownSandboxResponse{}, theirs: &sandbox.ShutdownSandboxResponse{}},
	{ours: api.SandboxMetricsRequest{}, theirs: &sandbox.SandboxMetricsRequest{}},
	{ours: api.SandboxMetricsResponse{}, theirs: &sandbox.SandboxMetricsResponse{}},

	{ours: api.TaskCreate{}, theirs: &events.TaskCreate{}},
	{ours: api.TaskIO{}, theirs: &events.TaskIO{}},
	{ours: api.TaskStart{}, theirs: &events.TaskStart{}},
	{ours: api.TaskOOM{}, theirs: &events.TaskOOM{}},
	{ours: api.TaskExit{}, theirs: &events.TaskExit{}},
	{ours: api.TaskDelete{}, theirs: &events.TaskDelete{}},
	{ours: api.TaskExecAdded{}, theirs: &events.TaskExecAdded{}},
	{ours: api.TaskExecStarted{}, theirs: &events.TaskExecStarted{}},
	{ours: api.TaskPaused{}, theirs: &events.TaskPaused{}},
	{ours: api.TaskResumed{}, theirs: &events.TaskResumed{}},
	{ours: api.TaskCheckpointed{}, theirs: &events.TaskCheckpointed{}},
	{ours: api.ForwardRequest{}, theirs: &ttrpcevents.ForwardRequest{}},

	{ours: api.BootstrapParams{}, theirs: &bootstrap.BootstrapParams{}, left: []string{"containerd_binary"}},
	{ours: api.Extension{}, theirs: &bootstrap.Extension{}},
	{ours: api.BootstrapResult{}, theirs: &bootstrap.BootstrapResult{}, left: []string{"capabilities", "metadata", "extensions"}},
	// For shims that are sandboxes of their own.
	{ours: api.RuncOptions{}, theirs: &options.Options{}, left: []string{"task_api_address", "task_api_version"}},
	{ours: api.CheckpointOptions{}, theirs: &options.CheckpointOptions{}},
	{ours: api.ProcessDetails{}, theirs: &options.ProcessDetails{}},
	{ours: api.RuntimeOptions{}, theirs: &runtimeoptions.Options{}},

	{ours: cgroup1.Metrics{}, theirs: &v1.Metrics{}, left: []string{"network", "cgroup_stats"}},
	{ours: cgroup1.HugetlbStat{}, theirs: &v1.HugetlbStat{}},
	{ours: cgroup1.PidsStat{}, theirs: &v1.PidsStat{}},
	{ours: cgroup1.CPUStat{}, theirs: &v1.CPUStat{}},
	{ours: cgroup1.CPUUsage{}, theirs: &v1.CPUUsage{}},
	{ours: cgroup1.Throttle{}, theirs: &v1.Throttle{}},
	{ours: cgroup1.MemoryStat{}, theirs: &v1.MemoryStat{}},
	{ours: cgroup1.MemoryEntry{}, theirs: &v1.MemoryEntry{}},
	{ours: cgroup1.MemoryOomControl{}, theirs: &v1.MemoryOomControl{}},
	{ours: cgroup1.BlkIOStat{}, theirs: &v1.BlkIOStat{}},
	{ours: cgroup1.BlkIOEntry{}, theirs: &v1.BlkIOEntry{}},
	{ours: cgroup1.RdmaStat{}, theirs: &v1.RdmaStat{}},
	{ours: cgroup1.RdmaEntry{}, theirs: &v1.RdmaEntry{}},

	{ours: cgroup2.Metrics{}, theirs: &v2.Metrics{}, left: []string{"network"}},
	{ours: cgroup2.PidsStat{}, theirs: &v2.PidsStat{}},
	{ours: cgroup2.CPUStat{}, theirs: &v2.CPUStat{}},
	{ours: cgroup2.MemoryStat{}, theirs: &v2.MemoryStat{}},
	{ours: cgroup2.MemoryEvents{}, theirs: &v2.MemoryEvents{}},
	{ours: cgroup2.RdmaStat{}, theirs: &v2.RdmaStat{}},
	{ours: cgroup2.RdmaEntry{}, theirs: &v2.RdmaEntry{}},
	{ours: cgroup2.IOStat{}, theirs: &v2.IOStat{}},
	{ours: cgroup2.IOEntry{}, theirs: &v2.IOEntry{}},
	{ours: cgroup2.HugeTlbStat{}, theirs: &v2.HugeTlbStat{}},
	{ours: cgroup2.PSIStats{}, theirs: &v2.PSIStats{}},
	{ours: cgroup2.PSIData{}, theirs: &v2.PSIData{}},
}

// Each message has the fields of containerd's in the same order: number, type on the wire, name, and type in Go. A message in a field has
// the name of containerd's, and is in the list itself.
func TestMessagesAreThoseOfContainerd(t *testing.T) {
	for _, p := range pairs {
		theirs := reflect.TypeOf(p.theirs).Elem()
		t.Run(theirs.String(), func(t *testing.T) {
			want := taggedFields(t, theirs)
			for _, name := range p.left {
				before := len(want)
				want = slices.DeleteFunc(want, func(f field) bool { return slices.Contains(strings.Split(f.tag, ","), "name="+name) })
				if len(want) != before-1 {
					t.Errorf("containerd's has no field %s that could be left out", name)
				}
			}
			if got := taggedFields(t, reflect.TypeOf(p.ours)); !slices.Equal(got, want) {
				t.Errorf("fields\n%q, want\n%q", got, want)
			}
		})
	}
}

// What containerd encodes is decoded, and what is encoded is what containerd reads.
func TestMessagesTravel(t *testing.T) {
	for _, p := range pairs {
		t.Run(reflect.TypeOf(p.theirs).Elem().String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, 6))
			for range 50 {
				want := p.theirs.ProtoReflect().New()
				wiretest.Fill(r, want)
				sent, err := proto.Marshal(want.Interface())
				if err != nil {
					t.Fatal(err)
				}
				ours := reflect.New(reflect.TypeOf(p.ours)).Interface()
				if err := wire.Unmarshal(sent, ours); err != nil {
					t.Fatal(err)
				}
				back, err := wire.Marshal(ours)
				if err != nil {
					t.Fatal(err)
				}
				got := p.theirs.ProtoReflect().New().Interface()
				if err := proto.Unmarshal(back, got); err != nil {
					t.Fatal(err)
				}
				clearFields(want, p.left)
				for name, left := range p.below {
					if f := want.Descriptor().Fields().ByName(protoreflect.Name(name)); want.Has(f) {
						clearFields(want.Mutable(f).Message(), left)
					}
				}
				if !proto.Equal(got, want.Interface()) {
					t.Fatalf("got  %v\nwant %v", got, want)
				}
			}
		})
	}
}

func clearFields(m protoreflect.Message, names []string) {
	for _, name := range names {
		m.Clear(m.Descriptor().Fields().ByName(protoreflect.Name(name)))
	}
}

func TestEveryMessageIsCompared(t *testing.T) {
	compared := map[string]bool{"api.Empty": true} // is without a field
	for _, p := range pairs {
		compared[reflect.TypeOf(p.ours).String()] = true
	}
	var files []string
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for node := range ast.Preorder(file) {
			spec, ok := node.(*ast.TypeSpec)
			if !ok {
				continue
			}
			name := file.Name.Name + "." + spec.Name.Name
			if _, ok := spec.Type.(*ast.StructType); ok && !compared[name] {
				t.Errorf("%s is compared with nothing", name)
			}
		}
	}
}

// A message that containerd adds to a service is noticed. pkg/service has the methods.
func TestServicesAreWhole(t *testing.T) {
	have := map[protoreflect.FullName]bool{}
	for _, p := range pairs {
		have[p.theirs.ProtoReflect().Descriptor().FullName()] = true
	}
	for _, file := range []protoreflect.FileDescriptor{task.File_runtime_task_v2_shim_proto, sandbox.File_runtime_sandbox_v1_sandbox_proto} {
		methods := file.Services().Get(0).Methods()
		for i := range methods.Len() {
			for _, m := range []protoreflect.MessageDescriptor{methods.Get(i).Input(), methods.Get(i).Output()} {
				if name := m.FullName(); !have[name] && name != "google.protobuf.Empty" {
					t.Errorf("%s of %s is not here", name, methods.Get(i).FullName())
				}
			}
		}
	}
}

// One set of structs does for both versions of the task API.
func TestTheVersionsOfTheTaskAPIHaveTheSameMessages(t *testing.T) {
	v2, v3 := protodesc.ToFileDescriptorProto(task.File_runtime_task_v2_shim_proto), protodesc.ToFileDescriptorProto(task3.File_runtime_task_v3_shim_proto)
	for _, m := range v3.GetMessageType() {
		for _, f := range m.GetField() {
			if f.TypeName != nil {
				*f.TypeName = strings.Replace(*f.TypeName, ".containerd.task.v3.", ".containerd.task.v2.", 1)
			}
		}
	}
	if diff := cmp.Diff(v2.GetMessageType(), v3.GetMessageType(), protocmp.Transform()); diff != "" {
		t.Errorf("messages (-v2 +v3):\n%s", diff)
	}
}

func TestConstantsAreThoseOfContainerd(t *testing.T) {
	for _, c := range []struct {
		name         string
		ours, theirs int32
	}{
		{"CREATED", int32(api.StatusCreated), int32(tasktypes.Status_CREATED)},
		{"RUNNING", int32(api.StatusRunning), int32(tasktypes.Status_RUNNING)},
		{"STOPPED", int32(api.StatusStopped), int32(tasktypes.Status_STOPPED)},
		{"PAUSED", int32(api.StatusPaused), int32(tasktypes.Status_PAUSED)},
		{"PAUSING", int32(api.StatusPausing), int32(tasktypes.Status_PAUSING)},
		{"LOG_LEVEL_DEBUG", int32(api.LogLevelDebug), int32(bootstrap.LogLevel_LOG_LEVEL_DEBUG)},
	} {
		if c.ours != c.theirs {
			t.Errorf("%s is %d, want %d", c.name, c.ours, c.theirs)
		}
	}
	for _, m := range []struct {
		ours   interface{ MessageName() string }
		theirs proto.Message
	}{
		{&cgroup1.Metrics{}, &v1.Metrics{}},
		{&cgroup2.Metrics{}, &v2.Metrics{}},
	} {
		if got, want := m.ours.MessageName(), string(m.theirs.ProtoReflect().Descriptor().FullName()); got != want {
			t.Errorf("%T is called %s, want %s", m.ours, got, want)
		}
	}
}

type field struct{ tag, typ string }

// unwanted is what protoc-gen-go adds for names of two words, and for enumerations.
var unwanted = regexp.MustCompile(",(json|enum)=[^,]*")

// taggedFields are the tags and the types of the fields of a message; a type of the message's own package without that.
func taggedFields(t *testing.T, of reflect.Type) (all []field) {
	t.Helper()
	for f := range of.Fields() {
		tag := unwanted.ReplaceAllString(f.Tag.Get("protobuf"), "")
		if tag == "" {
			if f.IsExported() {
				t.Errorf("%s.%s has no tag", of, f.Name)
			}
			continue
		}
		all = append(all, field{tag, nameOf(f.Type)})
	}
	return all
}

// nameOf is the name of a field's type, with the kind of an enumeration. containerd has its messages in more packages.
func nameOf(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return "*" + nameOf(t.Elem())
	case t.Kind() == reflect.Slice:
		return "[]" + nameOf(t.Elem())
	case t.Kind() == reflect.Int32:
		return t.Name() + " " + t.Kind().String()
	}
	return t.Name()
}
