// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// Processes lists the processes of a container in the order of their pids. For shims other than this project's,
// containerd reports only the pids, so no exec is known.
func (n *Node) Processes(ctx context.Context, namespace, id string) ([]Process, error) {
	ctx, cancel := n.in(ctx, namespace)
	defer cancel()
	list, err := n.shimProcesses(ctx, key{namespace, id})
	if !errdefs.IsNotImplemented(err) {
		return list, err
	}
	answer, err := tasksapi.NewTasksClient(n.conn).ListPids(ctx, &tasksapi.ListPidsRequest{ContainerID: id})
	if err != nil {
		return nil, fmt.Errorf("containerd: processes of %s: %w", id, errgrpc.ToNative(err))
	}
	host, err := measure.ReadHost(n.hierarchies)
	if err != nil {
		return nil, err
	}
	for _, p := range answer.Processes {
		stat, err := measure.ReadProcess("/", int(p.Pid))
		if err != nil {
			continue // it has ended
		}
		list = append(list, Process{
			Pid: int(p.Pid), Name: stat.Name, Started: host.BootTime.Add(stat.Starts), CPU: stat.CPU, RSS: stat.RSS,
		})
	}
	slices.SortFunc(list, func(a, b Process) int { return a.Pid - b.Pid })
	return list, nil
}

func (n *Node) shimProcesses(ctx context.Context, k key) ([]Process, error) {
	address, err := shim.Find(n.config.State, k.namespace, k.id)
	if err != nil {
		return nil, err
	}
	client, err := shim.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	told, err := client.Processes(ctx, k.id)
	if err != nil {
		return nil, err
	}
	var list []Process
	for _, p := range told {
		started := time.Time{}
		if p.Started != nil {
			started = p.Started.AsTime()
		}
		list = append(list, Process{
			Pid: p.Pid, Exec: p.Exec, Name: p.Name, Started: started, CPU: p.CPU, RSS: p.RSS,
		})
	}
	return list, nil
}
