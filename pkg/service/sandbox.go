// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	json "github.com/go-json-experiment/json/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/group"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/protofield"
	"sandbox.internal/shim/pkg/sandbox"
)

const sandboxServiceName = "containerd.runtime.sandbox.v1.Sandbox"

// sandboxService is containerd.runtime.sandbox.v1.Sandbox. Requests and answers of its methods are encoded messages,
// whose fields are those of api/runtime/sandbox/v1/sandbox.proto by number.
type sandboxService struct{ group *group.Group }

func (s *sandboxService) pods(id string) *sandbox.Controller { return s.group.Of(id).Pods }

func (s *sandboxService) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"CreateSandbox":   encodedMethod(s.Create),
		"StartSandbox":    encodedMethod(s.Start),
		"Platform":        encodedMethod(s.Platform),
		"StopSandbox":     encodedMethod(s.Stop),
		"WaitSandbox":     encodedMethod(s.Wait),
		"SandboxStatus":   encodedMethod(s.Status),
		"PingSandbox":     encodedMethod(s.Ping),
		"ShutdownSandbox": encodedMethod(s.Shutdown),
		"SandboxMetrics":  encodedMethod(s.Metrics),
		// CRI stores the sums of the pod's resources itself, and the kubelet owns the pod's cgroup.
		"UpdateSandbox": encodedMethod(s.Ping),
	}
}

// encodedMethod passes call the request's sandbox_id, which is field 1 in all requests, and the request. ttrpc decodes
// and encodes each message as an Empty: the fields that an Empty does not know are the whole message. The generated
// package would link gRPC (docs/decisions/0013-messages-of-containerd.md), so [decode] has the fields by number.
func encodedMethod(call func(ctx context.Context, id string, request []byte) (answer []byte, err error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		var m emptypb.Empty
		if err := unmarshal(&m); err != nil {
			return nil, err
		}
		request := m.ProtoReflect().GetUnknown()
		var id string
		if err := decode(request, &id); err != nil {
			return nil, err
		}
		answer, err := call(ctx, id, request)
		if err != nil {
			return nil, err
		}
		m.ProtoReflect().SetUnknown(answer)
		return &m, nil
	}
}

// decode reads the request's fields: the first argument is for field 1, and nil skips a field.
func decode(request []byte, fields ...any) error {
	if err := protofield.Decode(request, fields...); err != nil {
		return fmt.Errorf("decode request: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (s *sandboxService) Create(ctx context.Context, id string, request []byte) ([]byte, error) {
	r := sandbox.CreateRequest{ID: id}
	var netNS string
	var options anypb.Any
	var rootfs []*types.Mount
	// 2 bundle_path, 3 rootfs, 4 options, 5 netns_path, 6 annotations
	err := decode(request, nil, &r.Bundle, &rootfs, &options, &netNS, &r.Annotations)
	if err == nil {
		r.Config, err = podConfig(&options)
		r.Config.NetNS = netNS
	}
	if err == nil && len(rootfs) > 0 {
		err = fmt.Errorf("rootfs %s: must be empty, since a sandbox of this shim runs no program: %w",
			rootfs[0].Source, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", id, err)
	}
	u, err := s.group.ToCreate(id, r.Bundle)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", id, err)
	}
	return nil, u.Pods.Create(ctx, r)
}

func (s *sandboxService) Start(ctx context.Context, id string, _ []byte) ([]byte, error) {
	started, err := s.pods(id).Start(ctx, id)
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(started.Spec)
	if err != nil {
		return nil, fmt.Errorf("encode the pod's configuration: %w", err)
	}
	return protofield.Encode(
		uint32(started.Pid), timestamp(started.CreatedAt), &anypb.Any{TypeUrl: specURL + "1/Spec", Value: spec},
	)
}

// Platform returns the platform of the containers, which is that of this program.
func (s *sandboxService) Platform(_ context.Context, id string, _ []byte) ([]byte, error) {
	if err := s.pods(id).Ping(id); err != nil {
		return nil, err
	}
	return protofield.Encode(&types.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH})
}

func (s *sandboxService) Stop(ctx context.Context, id string, request []byte) ([]byte, error) {
	var seconds uint32
	if err := decode(request, nil, &seconds); err != nil { // 2 timeout_secs
		return nil, err
	}
	return nil, s.pods(id).Stop(ctx, id, time.Duration(seconds)*time.Second)
}

func (s *sandboxService) Wait(ctx context.Context, id string, _ []byte) ([]byte, error) {
	exit, err := s.pods(id).Wait(ctx, id)
	if err != nil {
		return nil, err
	}
	return protofield.Encode(uint32(exit.Status), timestamp(exit.At))
}

func (s *sandboxService) Status(_ context.Context, id string, request []byte) ([]byte, error) {
	var verbose bool
	if err := decode(request, nil, &verbose); err != nil { // 2 verbose
		return nil, err
	}
	status, err := s.pods(id).Status(id)
	if err != nil {
		return nil, err
	}
	var info []any
	if verbose {
		if info, err = podInfo(status); err != nil {
			return nil, err
		}
	}
	state := "SANDBOX_NOTREADY" // CRI's PodSandboxState
	if status.Stage == sandbox.Running {
		state = "SANDBOX_READY"
	}
	return protofield.Encode(status.ID, uint32(status.Pid), state, info,
		timestamp(status.CreatedAt), timestamp(status.Exit.At))
}

func (s *sandboxService) Ping(_ context.Context, id string, _ []byte) ([]byte, error) {
	return nil, s.pods(id).Ping(id)
}

func (s *sandboxService) Shutdown(ctx context.Context, id string, _ []byte) ([]byte, error) {
	return nil, s.group.ShutdownPod(ctx, id)
}

func (s *sandboxService) Metrics(_ context.Context, id string, _ []byte) ([]byte, error) {
	metrics, err := s.pods(id).Metrics(id)
	if err != nil {
		return nil, err
	}
	data, err := typeurl.MarshalAnyToProto(metrics)
	if err != nil {
		return nil, err
	}
	return protofield.Encode(&types.Metric{Timestamp: timestamppb.Now(), ID: id, Data: data})
}

const podConfigName = "runtime.v1.PodSandboxConfig" // CRI's

// podConfig reads the options of a CreateSandbox. Without any, as from ctr, the pod has the defaults of CRI.
func podConfig(options *anypb.Any) (pod.Config, error) {
	url := options.TypeUrl
	if url == "" && len(options.Value) == 0 {
		return pod.Config{PID: pod.ModeContainer}, nil
	}
	if url[strings.LastIndexByte(url, '/')+1:] != podConfigName {
		return pod.Config{}, fmt.Errorf("options: type %q: want %s: %w", url, podConfigName, errdefs.ErrInvalidArgument)
	}
	config, err := pod.DecodeConfig(options.Value)
	if err != nil {
		err = fmt.Errorf("options: %w", err)
	}
	return config, err
}

// podInfo returns the entry in the info of a verbose SandboxStatus. CRI decodes its value and encodes it again.
func podInfo(s sandbox.Status) ([]any, error) {
	data, err := json.Marshal(sandboxInfo{
		Pid: s.Pid, Status: string(s.Stage), RuntimeType: "io.containerd.sandbox.v1",
		Config: s.Config.CRI, RuntimeSpec: s.Spec,
	})
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: encode status: %w", s.ID, err)
	}
	return []any{"info", data}, nil
}

// sandboxInfo has the names that CRI reads (containerd internal/cri/server/podsandbox/types, SandboxInfo).
type sandboxInfo struct {
	Pid         int            `json:"pid"`
	Status      string         `json:"processStatus"`
	RuntimeType string         `json:"runtimeType"`
	Config      *pod.CRIConfig `json:"config"`
	RuntimeSpec *specs.Spec    `json:"runtimeSpec"`
}
