// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/containerd/api/services/tasks/v1"
)

// lanes is how many execs of a burst, or containers of a batch, run at the same time.
const lanes = 3

// burst runs execs from beginning to end, and tells of one that went wrong if there is one.
func (e *Env) burst(ctx context.Context, p *place, count int) string {
	if p.process == nil {
		return notFound
	}
	var answers [lanes]string
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			answers[lane] = ok
			for i := lane; i < count && answers[lane] == ok; i += lanes {
				answers[lane] = e.execOnce(ctx, p, fmt.Sprintf("b%d", i), programOf(i))
			}
		})
	}
	all.Wait()
	for _, answer := range answers {
		if answer != ok {
			return answer
		}
	}
	return ok
}

func (e *Env) execOnce(ctx context.Context, p *place, id string, program program) string {
	if answer := e.registerExec(ctx, p, id, program, nil); answer != ok {
		return answer
	}
	pid, answer := e.startOnce(ctx, p, id)
	if answer == ok {
		answer = e.wait(ctx, p.id, id, pid)
	}
	deleted := e.call(ctx, func(ctx context.Context) error {
		_, err := e.client.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: p.id, ExecID: id})
		return err
	})
	switch want := fmt.Sprintf("%s %d", ok, program.codes()[0]); {
	case answer == fmt.Sprintf("%s %d", ok, killed):
		return killedMeanwhile
	case answer == want:
		return deleted
	}
	return answer
}

// startOnce starts an exec that is in no place.
func (e *Env) startOnce(ctx context.Context, p *place, id string) (pid int, answer string) {
	answer = e.call(ctx, func(ctx context.Context) error {
		r, err := e.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: p.id, ExecID: id})
		pid = int(r.GetPid())
		return err
	})
	if answer == ok {
		e.order.began(e.name, p.id, id, pid)
		e.count(func(t *Totals) { t.Execs++ })
	}
	return pid, answer
}
