// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"

	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/protofield"
	"sandbox.internal/shim/pkg/task"
)

const runsServiceName = "io.containerd.sandbox.v1.Runs"

// runsService is io.containerd.sandbox.v1.Runs, this shim's own (runs.proto). Its messages are encoded by the numbers
// of their fields.
type runsService struct {
	manager *task.Manager
}

func (s *runsService) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"Verdicts":  encodedMethod(s.Verdicts),
		"Processes": encodedMethod(s.Processes),
	}
}

func (s *runsService) Verdicts(_ context.Context, id string, request []byte) ([]byte, error) {
	c, err := s.manager.Container(id)
	if err != nil {
		return nil, err
	}
	var execID string
	if err := decode(request, nil, &execID); err != nil {
		return nil, err
	}
	var verdicts [][]any
	for _, v := range c.Verdicts() {
		if execID == "" || v.Exec == execID {
			verdicts = append(verdicts, verdictFields(v))
		}
	}
	return protofield.Encode(verdicts)
}

func verdictFields(v limit.Verdict) []any {
	return []any{
		v.Container, v.Exec, uint32(v.Pid), timestamp(v.Started), timestamp(v.Ended), uint32(v.Status), uint32(v.Signal),
		string(v.Limit), uint64(v.Wall), uint64(v.CPU), uint64(v.User), uint64(v.System), v.MemoryPeak, v.OOMKills,
		v.ForksRefused, streamFields(v.Stdout), streamFields(v.Stderr),
	}
}

func streamFields(s limit.Stream) []any { return []any{uint64(s.Written), uint64(s.Dropped)} }

func (s *runsService) Processes(_ context.Context, id string, _ []byte) ([]byte, error) {
	c, err := s.manager.Container(id)
	if err != nil {
		return nil, err
	}
	all, partial, err := c.Processes()
	if err != nil {
		return nil, err
	}
	var processes [][]any
	for _, p := range all {
		processes = append(processes, processFields(p))
	}
	return protofield.Encode(processes, partial)
}

func processFields(p task.ProcessInfo) []any {
	return []any{uint32(p.Pid), p.Exec, p.First, p.Name, timestamp(p.Started), uint64(p.CPU), p.RSS}
}
