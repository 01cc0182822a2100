// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"sandbox.internal/shim/integration/harness"
)

// BenchmarkThroughput sends 256 MiB through a stream of an exec, in turns for the runtime under test and for the runc
// shim, and reports the medians in MB/s. Run it with -benchtime=20x, say.
func BenchmarkThroughput(b *testing.B) {
	const size = 256 * mib
	runtimes := []string{harness.Runtime(), "io.containerd.runc.v2"}
	for _, stream := range []struct {
		name  string
		stdin bool
		args  []string
	}{
		{"stdin", true, []string{"dd", "of=/dev/null", "bs=64k"}},
		{"stdin of a slow reader", true, []string{"wc", "-c"}},
		{"stdout", false, []string{"dd", "if=/dev/zero", "bs=64k", fmt.Sprintf("count=%d", size>>16)}},
	} {
		b.Run(stream.name, func(b *testing.B) {
			e := newEnvOn(b, shared)
			tasks := make([]*task, len(runtimes))
			for i, name := range runtimes {
				tasks[i] = e.run(fmt.Sprintf("c%d", i),
					config{new: []client.NewContainerOpts{client.WithRuntime(name, nil)}}, "sleep", "100000")
			}
			figures := make([][]float64, len(runtimes))
			for round := 0; b.Loop(); round++ {
				for turn := range tasks {
					i := (round + turn) % len(tasks) // nobody is always first
					took := transfer(e, tasks[i], fmt.Sprintf("x%d-%d", round, i), stream.stdin, size, stream.args)
					figures[i] = append(figures[i], float64(size)/1e6/took.Seconds())
				}
			}
			for i, name := range runtimes {
				slices.Sort(figures[i])
				b.ReportMetric(figures[i][len(figures[i])/2], "MB/s:"+name)
			}
			for _, c := range tasks {
				c.kill()
			}
		})
	}
}

// transfer times an exec from its start to its end.
func transfer(e *env, c *task, id string, stdin bool, size int64, args []string) time.Duration {
	e.Helper()
	spec, err := c.container.Spec(e.ctx)
	e.must(err, "spec")
	spec.Process.Args = args
	var in io.Reader
	if stdin {
		in = io.LimitReader(zeros{}, size)
	}
	out := &counter{}
	p, err := c.Task.Exec(e.ctx, id, spec.Process,
		cio.NewCreator(cio.WithStreams(in, out, io.Discard), cio.WithFIFODir(e.containerd.Fifos)))
	e.must(err, "exec")
	x := &process{Process: p, e: e, err: &harness.Buffer{}}
	x.exited, err = p.Wait(e.ctx)
	e.must(err, "wait")
	begin := time.Now()
	e.must(p.Start(e.ctx), "start")
	if stdin {
		e.must(p.CloseIO(e.ctx, withStdin), "close stdin")
	}
	x.wantExit(0)
	took := time.Since(begin)
	if !stdin && out.n != size {
		e.Fatalf("got %d bytes, want %d", out.n, size)
	}
	return took
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// counter counts what is written to it. One goroutine writes, and it is read after that ended.
type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) { c.n += int64(len(b)); return len(b), nil }
