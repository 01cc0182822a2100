// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/api"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
	"sandbox.internal/shim/pkg/wire"
)

var statuses = map[process.State]api.Status{
	process.Created: api.StatusCreated,
	process.Running: api.StatusRunning,
	process.Pausing: api.StatusPausing,
	process.Paused:  api.StatusPaused,
	process.Stopped: api.StatusStopped,
	process.Deleted: api.StatusStopped, // seen only by a caller that found the process just before it went
}

func stateResponse(s process.Status) *api.StateResponse {
	return &api.StateResponse{
		ID: s.ID, Bundle: s.Bundle, Pid: uint32(s.Pid), Status: statuses[s.State],
		Stdin: s.IO.Stdin, Stdout: s.IO.Stdout, Stderr: s.IO.Stderr, Terminal: s.IO.Terminal,
		ExitStatus: uint32(s.Exit.Status), ExitedAt: timestamp(s.Exit.At),
	}
}

// timestamp of a time that is not set is nil, which containerd takes for none.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func streams(stdin, stdout, stderr string, terminal bool) stdio.Config {
	return stdio.Config{Stdin: stdin, Stdout: stdout, Stderr: stderr, Terminal: terminal}
}

func mounts(list []*api.Mount) []mount.Mount {
	var all []mount.Mount
	for _, m := range list {
		all = append(all, mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}

// processInfos adds to each pid that is an exec the exec's id, as
// containerd.runc.v1.ProcessDetails.
func processInfos(pids []int, execs map[int]string) ([]*api.ProcessInfo, error) {
	infos := make([]*api.ProcessInfo, 0, len(pids))
	for _, pid := range pids {
		info := &api.ProcessInfo{Pid: uint32(pid)}
		if execID, ok := execs[pid]; ok {
			details, err := pack("containerd.runc.v1.ProcessDetails", &api.ProcessDetails{ExecID: execID})
			if err != nil {
				return nil, err
			}
			info.Info = details
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// pack makes an Any of m as containerd's typeurl does: the type URL is the message's
// name, with nothing before it.
func pack(name string, m any) (*anypb.Any, error) {
	value, err := wire.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return &anypb.Any{TypeUrl: name, Value: value}, nil
}

// checkpointRequest reads the options of a checkpoint; without any, which is
// what containerd's client sends to runtimes that it does not know, the
// container goes on running.
func checkpointRequest(r *api.CheckpointTaskRequest) (process.CheckpointRequest, error) {
	const want = "containerd.runc.v1.CheckpointOptions"
	var o api.CheckpointOptions
	if url := r.Options.GetTypeUrl(); url != "" {
		if r.Options.MessageName() != want {
			return process.CheckpointRequest{}, fmt.Errorf("options: type %q: want %s: %w", url, want, errdefs.ErrInvalidArgument)
		}
		if err := wire.Unmarshal(r.Options.Value, &o); err != nil {
			return process.CheckpointRequest{}, fmt.Errorf("options: decode %s: %w: %w", want, err, errdefs.ErrInvalidArgument)
		}
	}
	return process.CheckpointRequest{
		Path: r.Path, WorkPath: o.WorkPath, ParentPath: o.ParentPath, CgroupsMode: o.CgroupsMode,
		EmptyNamespaces: o.EmptyNamespaces, Exit: o.Exit, OpenTCP: o.OpenTCP,
		ExternalUnixSockets: o.ExternalUnixSockets, Terminal: o.Terminal, FileLocks: o.FileLocks,
	}, nil
}

// OCI types travel as JSON, under a type URL that ends with the version and the
// name (containerd core/runtime/typeurl.go).
const specURL = "types.containerd.io/opencontainers/runtime-spec/"

func execProcess(a *anypb.Any) (*specs.Process, error) {
	var p specs.Process
	if err := unpackSpec(a, "spec", "Process", &p); err != nil {
		return nil, err
	}
	if err := task.CheckProcess(&p); err != nil {
		return nil, fmt.Errorf("spec.%w", err)
	}
	return &p, nil
}

func linuxResources(a *anypb.Any) (*specs.LinuxResources, error) {
	var r specs.LinuxResources
	if err := unpackSpec(a, "resources", "LinuxResources", &r); err != nil {
		return nil, err
	}
	return &r, nil
}

func unpackSpec(a *anypb.Any, field, name string, to any) error {
	url := a.GetTypeUrl()
	if !strings.HasPrefix(url, specURL) || !strings.HasSuffix(url, "/"+name) {
		return fmt.Errorf("%s: type %q: want %s<version>/%s: %w", field, url, specURL, name, errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(a.GetValue(), to); err != nil {
		return fmt.Errorf("%s: %w: %w", field, err, errdefs.ErrInvalidArgument)
	}
	return nil
}
