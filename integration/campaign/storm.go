// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
)

// storm starts execs, ends them all while containerd is stopped or dead, and then asks for each exit. It tells of one
// that went wrong if there is one.
func (e *Env) storm(ctx context.Context, p *place, s Step) string {
	if p.process == nil {
		return notFound
	}
	answers, pids := make([]string, s.Count), make([]int, s.Count)
	e.each(s.Count, func(i int) {
		if answers[i] = e.registerExec(ctx, p, stormID(i), forever, nil); answers[i] == ok {
			pids[i], answers[i] = e.startOnce(ctx, p, stormID(i))
		}
	})
	if err := e.withoutContainerd(ctx, s.Gone, func() { e.killAll(pids) }); err != nil {
		return "error: " + err.Error()
	}
	e.each(s.Count, func(i int) { answers[i] = e.endStorm(ctx, p, i, pids[i], answers[i]) })
	for _, answer := range answers {
		if answer != ok {
			return answer
		}
	}
	return ok
}

func stormID(i int) string { return fmt.Sprintf("s%d", i) }

// each calls f for each number, some at the same time.
func (e *Env) each(count int, f func(i int)) {
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := lane; i < count; i += lanes {
				f(i)
			}
		})
	}
	all.Wait()
}

// withoutContainerd calls f while containerd is stopped, or gone.
func (e *Env) withoutContainerd(ctx context.Context, gone bool, f func()) error {
	if gone {
		e.count(func(t *Totals) { t.Daemons++ })
		if err := e.daemon.Kill(); err != nil {
			return fmt.Errorf("kill containerd: %w", err)
		}
		f()
		return e.restart(ctx)
	}
	e.count(func(t *Totals) { t.Stops++ })
	if err := unix.Kill(e.daemon.Pid(), unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop containerd: %w", err)
	}
	f()
	if err := unix.Kill(e.daemon.Pid(), unix.SIGCONT); err != nil {
		return fmt.Errorf("let containerd go on: %w", err)
	}
	return nil
}

// killAll kills the processes with these pids that are of containers.
func (e *Env) killAll(pids []int) {
	for _, pid := range pids {
		fd := e.contained(pid)
		if fd < 0 {
			continue
		}
		if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil { // or it has ended
			e.count(func(t *Totals) { t.Processes++ })
		}
		_ = unix.Close(fd)
	}
}

// endStorm asks how an exec has ended, and deletes it.
func (e *Env) endStorm(ctx context.Context, p *place, i, pid int, answer string) string {
	if pid != 0 {
		answer = e.wait(ctx, p.id, stormID(i), pid)
		if answer == fmt.Sprintf("%s %d", ok, killed) {
			answer = ok
		}
	}
	deleted := e.call(ctx, func(ctx context.Context) error {
		_, err := e.client.TaskService().DeleteProcess(ctx,
			&tasks.DeleteProcessRequest{ContainerID: p.id, ExecID: stormID(i)})
		return err
	})
	if answer == ok {
		answer = deleted
	}
	return answer
}
