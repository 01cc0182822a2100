// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/sandbox"
)

// fakePod is a pod without namespaces, in the cgroup of the test.
type fakePod struct {
	sandbox.Pod // nothing else of it is called
	request     pod.Request
	cgroup      string
}

func (p *fakePod) Start(context.Context) error      { return nil }
func (p *fakePod) Pid() int                         { return os.Getpid() }
func (p *fakePod) Spec() *specs.Spec                { return &specs.Spec{Hostname: p.request.Config.Hostname} }
func (p *fakePod) Adapt(*specs.Spec) error          { return nil }
func (p *fakePod) Wait() (status int, at time.Time) { return 0, time.Time{} }
func (p *fakePod) CgroupPath() string               { return p.cgroup }
func (p *fakePod) Close() error                     { return nil }

// podOptions is CRI's message as CRI's client of containerd packs it.
func podOptions(t *testing.T) *anypb.Any {
	t.Helper()
	value, err := proto.Marshal(&cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "n", Uid: "u", Namespace: "ns", Attempt: 2},
		Hostname: "h", LogDirectory: "/l", Labels: map[string]string{"l": "1"},
		Annotations: map[string]string{"a": "2"},
		DnsConfig:   &cri.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"x"}, Options: []string{"y"}},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/p", Sysctls: map[string]string{"net.x": "3"},
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				Privileged:     true,
				SelinuxOptions: &cri.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0"},
				NamespaceOptions: &cri.NamespaceOption{
					Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_NODE,
					UsernsOptions: &cri.UserNamespace{
						Uids: []*cri.IDMapping{{HostId: 7, ContainerId: 8, Length: 9}},
						Gids: []*cri.IDMapping{{HostId: 4, ContainerId: 5, Length: 6}},
					},
				},
			},
			Overhead:  &cri.LinuxContainerResources{CpuPeriod: 1, CpuQuota: 2, CpuShares: 3, MemoryLimitInBytes: 4},
			Resources: &cri.LinuxContainerResources{CpuPeriod: 5},
		},
	})
	testx.Must(t, err)
	return &anypb.Any{TypeUrl: podConfigName, Value: value}
}

func (w *env) createPod() {
	w.t.Helper()
	r := &api.CreateSandboxRequest{SandboxID: "s", BundlePath: w.t.TempDir(), Options: podOptions(w.t)}
	w.must("CreateSandbox", r, &api.CreateSandboxResponse{})
}

func TestSandbox_Life(t *testing.T) {
	w := newEnv(t, sandboxServiceName)
	bundle := t.TempDir()
	w.must("CreateSandbox", &api.CreateSandboxRequest{
		SandboxID: "s", BundlePath: bundle, NetnsPath: "/netns", Options: podOptions(t),
		Annotations: map[string]string{"b": "3"},
	}, &api.CreateSandboxResponse{})
	r := w.pod.request
	if r.ID != "s" || r.Bundle != bundle || r.Config.NetNS != "/netns" || r.Config.Annotations["b"] != "3" {
		t.Errorf("request = %+v", r)
	}
	status := &api.SandboxStatusResponse{}
	w.must("SandboxStatus", &api.SandboxStatusRequest{SandboxID: "s"}, status)
	if status.State != "SANDBOX_NOTREADY" || status.Pid != 0 || status.CreatedAt == nil || status.ExitedAt != nil ||
		status.Info != nil {
		t.Errorf("status before start = %v", status)
	}

	started := &api.StartSandboxResponse{}
	w.must("StartSandbox", &api.StartSandboxRequest{SandboxID: "s"}, started)
	if got, want := started.Spec.GetTypeUrl(), "types.containerd.io/opencontainers/runtime-spec/1/Spec"; got != want {
		t.Errorf("type URL of the spec = %q, want %q", got, want)
	}
	var spec specs.Spec
	testx.Must(t, json.Unmarshal(started.Spec.GetValue(), &spec))
	if int(started.Pid) != os.Getpid() || spec.Hostname != "h" || !proto.Equal(started.CreatedAt, status.CreatedAt) {
		t.Errorf("StartSandbox = %v", started)
	}

	w.must("SandboxStatus", &api.SandboxStatusRequest{SandboxID: "s"}, status)
	if status.SandboxID != "s" || status.State != "SANDBOX_READY" || int(status.Pid) != os.Getpid() {
		t.Errorf("status after start = %v", status)
	}
	platform := &api.PlatformResponse{}
	w.must("Platform", &api.PlatformRequest{SandboxID: "s"}, platform)
	wantEqual(
		t, "Platform", platform,
		&api.PlatformResponse{Platform: &types.Platform{OS: "linux", Architecture: runtime.GOARCH}},
	)
	w.must("PingSandbox", &api.PingRequest{SandboxID: "s"}, &api.PingResponse{})
	w.must("UpdateSandbox", &api.UpdateSandboxRequest{SandboxID: "s"}, &api.UpdateSandboxResponse{})

	metrics := &api.SandboxMetricsResponse{}
	w.must("SandboxMetrics", &api.SandboxMetricsRequest{SandboxID: "s"}, metrics)
	want := "io.containerd.cgroups.v1.Metrics"
	if w.runtime.Group.Unified() {
		want = "io.containerd.cgroups.v2.Metrics"
	}
	m := metrics.Metrics
	if m.GetID() != "s" || m.GetTimestamp() == nil || m.GetData().GetTypeUrl() != want ||
		len(m.GetData().GetValue()) == 0 {
		t.Errorf("metrics = %v, want a %s of s", m, want)
	}

	waited := make(chan *api.WaitSandboxResponse, 1)
	go func() {
		r := &api.WaitSandboxResponse{}
		if err := w.call("WaitSandbox", &api.WaitSandboxRequest{SandboxID: "s"}, r); err != nil {
			t.Errorf("WaitSandbox: %v", err)
		}
		waited <- r
	}()
	w.must("StopSandbox", &api.StopSandboxRequest{SandboxID: "s", TimeoutSecs: 5}, &api.StopSandboxResponse{})
	if exit := <-waited; exit.ExitStatus != 0 || exit.ExitedAt == nil {
		t.Errorf("WaitSandbox = %v, want status 0 and a time", exit)
	}
	w.must("SandboxStatus", &api.SandboxStatusRequest{SandboxID: "s"}, status)
	if status.State != "SANDBOX_NOTREADY" || status.Pid != 0 || status.ExitedAt == nil {
		t.Errorf("status after stop = %v", status)
	}
	w.must("ShutdownSandbox", &api.ShutdownSandboxRequest{SandboxID: "s"}, &api.ShutdownSandboxResponse{})
	<-w.box.Done()
}

// CRI unmarshals "info" and marshals it again, so a field that it reads otherwise is an error or lost.
func TestSandboxStatus_VerboseIsWhatCRIReads(t *testing.T) {
	w := newEnv(t, sandboxServiceName)
	w.createPod()
	w.must("StartSandbox", &api.StartSandboxRequest{SandboxID: "s"}, &api.StartSandboxResponse{})
	status := &api.SandboxStatusResponse{}
	w.must("SandboxStatus", &api.SandboxStatusRequest{SandboxID: "s", Verbose: true}, status)
	var got, want any
	testx.Must(t, json.Unmarshal([]byte(status.Info["info"]), &got))
	testx.Must(t, json.Unmarshal(fmt.Appendf(nil, `{
		"pid": %d, "processStatus": "running", "runtimeType": "io.containerd.sandbox.v1",
		"runtimeSpec": {"ociVersion": "", "hostname": "h"},
		"config": {
			"metadata": {"name": "n", "uid": "u", "namespace": "ns", "attempt": 2},
			"hostname": "h", "log_directory": "/l", "labels": {"l": "1"}, "annotations": {"a": "2"},
			"dns_config": {"servers": ["1.1.1.1"], "searches": ["x"], "options": ["y"]},
			"linux": {
				"cgroup_parent": "/p", "sysctls": {"net.x": "3"},
				"security_context": {
					"privileged": true, "selinux_options": {"user": "u", "role": "r", "type": "t", "level": "s0"},
					"namespace_options": {"network": 2, "pid": 1, "ipc": 2, "userns_options": {
					"uids": [{"host_id": 7, "container_id": 8, "length": 9}],
					"gids": [{"host_id": 4, "container_id": 5, "length": 6}]}}},
				"overhead": {"cpu_period": 1, "cpu_quota": 2, "cpu_shares": 3, "memory_limit_in_bytes": 4},
				"resources": {"cpu_period": 5}
			}
		}}`, os.Getpid()), &want))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
}

func TestCreateSandbox_RefusesOptions(t *testing.T) {
	for _, tc := range []struct {
		name    string
		request *api.CreateSandboxRequest
		want    []string
	}{
		{"of another type", &api.CreateSandboxRequest{Options: &anypb.Any{TypeUrl: "runtime.v1alpha2.PodSandboxConfig"}}, []string{"options", "v1alpha2", podConfigName}},
		{"without a type", &api.CreateSandboxRequest{Options: &anypb.Any{Value: []byte("x")}}, []string{"options", podConfigName}},
		{
			"that are garbage",
			&api.CreateSandboxRequest{
				Options: &anypb.Any{TypeUrl: "k8s.io/" + podConfigName, Value: []byte("\xff\xff")},
			},
			[]string{"options", "PodSandboxConfig"},
		},
		{"with a root file system", &api.CreateSandboxRequest{Options: podOptions(t), Rootfs: []*types.Mount{{Source: "/image"}}}, []string{"rootfs", "/image"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newEnv(t, sandboxServiceName)
			tc.request.SandboxID, tc.request.BundlePath = "s", t.TempDir()
			err := w.call("CreateSandbox", tc.request, &api.CreateSandboxResponse{})
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("error = %v, want an invalid argument", err)
			}
			testx.WantText(t, err, tc.want...)
		})
	}
}

func TestCreateSandbox_WithoutOptionsHasTheDefaults(t *testing.T) {
	w := newEnv(t, sandboxServiceName)
	r := &api.CreateSandboxRequest{SandboxID: "s", BundlePath: t.TempDir(), NetnsPath: "/netns"}
	w.must("CreateSandbox", r, &api.CreateSandboxResponse{})
	want := pod.Config{PID: pod.ModeContainer, NetNS: "/netns", Annotations: map[string]string{}}
	if diff := cmp.Diff(want, w.pod.request.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

// containerd asks of a sandbox's id what it asks of a task's, when it finds its shim again (core/runtime/v2, loadShim).
func TestTask_WithTheIDOfASandbox(t *testing.T) {
	w := newEnv(t, sandboxServiceName)
	w.createPod()
	w.name = taskV3
	connected := &taskapi.ConnectResponse{}
	w.must("Connect", &taskapi.ConnectRequest{ID: "s"}, connected)
	if connected.ShimPid == 0 || connected.TaskPid != 0 {
		t.Errorf("Connect = %v, want the pid of the shim alone", connected)
	}
	for method, call := range map[string][2]proto.Message{
		"Pids":   {&taskapi.PidsRequest{ID: "s"}, &taskapi.PidsResponse{}},
		"Delete": {&taskapi.DeleteRequest{ID: "s"}, &taskapi.DeleteResponse{}},
		"State":  {&taskapi.StateRequest{ID: "s"}, &taskapi.StateResponse{}},
	} {
		if err := w.call(method, call[0], call[1]); !errdefs.IsNotFound(err) {
			t.Errorf("%s = %v, want not found", method, err)
		}
	}
	w.must("Shutdown", &taskapi.ShutdownRequest{ID: "s"}, &emptypb.Empty{})
	select {
	case <-w.box.Done():
		t.Error("Shutdown of a task ended the shim of a sandbox")
	default:
	}
}
