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
	var verdicts [][]byte
	for _, v := range c.Verdicts() {
		if execID != "" && v.Exec != execID {
			continue
		}
		encoded, err := encodeVerdict(v)
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, encoded)
	}
	return protofield.Encode(verdicts)
}

func encodeVerdict(v limit.Verdict) ([]byte, error) {
	var streams [2][]byte
	for i, s := range []limit.Stream{v.Stdout, v.Stderr} {
		var err error
		if streams[i], err = protofield.Encode(uint64(s.Written), uint64(s.Dropped)); err != nil {
			return nil, err
		}
	}
	return protofield.Encode(
		v.Container, v.Exec, uint32(v.Pid), timestamp(v.Started), timestamp(v.Ended), uint32(v.Status), uint32(v.Signal),
		string(v.Limit), uint64(v.Wall), uint64(v.CPU), uint64(v.User), uint64(v.System), v.MemoryPeak, v.OOMKills,
		v.ForksRefused, streams[0], streams[1],
	)
}

func (s *runsService) Processes(_ context.Context, id string, _ []byte) ([]byte, error) {
	c, err := s.manager.Container(id)
	if err != nil {
		return nil, err
	}
	all, partial, err := c.Processes()
	if err != nil {
		return nil, err
	}
	var processes [][]byte
	for _, p := range all {
		encoded, err := encodeProcess(p)
		if err != nil {
			return nil, err
		}
		processes = append(processes, encoded)
	}
	return protofield.Encode(processes, partial)
}

func encodeProcess(p task.ProcessInfo) ([]byte, error) {
	return protofield.Encode(
		uint32(p.Pid), p.Exec, p.First, p.Name, timestamp(p.Started), uint64(p.CPU), p.RSS,
	)
}
