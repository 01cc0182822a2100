// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// python is the machine's. It has 200 MiB in 800,000 objects, and answers each line with the value of that.
const python = "/usr/bin/python3"

var session = []string{python, "-c", `import sys
kept = [str(n) * 35 for n in range(800000)]
for line in sys.stdin:
    print(eval(line), flush=True)
`}

const (
	small = "1+1\n"
	whole = "sum(map(len, kept))\n"
)

// interpreter is a container that answers.
type interpreter struct {
	*container
	in  io.WriteCloser
	out *bufio.Reader
}

func (i *interpreter) ask(line string) error {
	if _, err := io.WriteString(i.in, line); err != nil {
		return err
	}
	_, err := i.out.ReadString('\n')
	return err
}

func (i *interpreter) timed(b *bench, row string, column int, what func() error) error {
	ms, err := timed(what)
	b.add(row, column, ms)
	return err
}

// interpret starts an interpreter in a container that has the machine's libraries.
func (s *subject) interpret(ctx context.Context, id string) (*interpreter, error) {
	fromIn, in := io.Pipe()
	out, toOut := io.Pipe()
	var mounts []specs.Mount
	for _, dir := range []string{"/usr", "/lib", "/lib64"} {
		if _, err := os.Stat(dir); err == nil {
			mounts = append(mounts, specs.Mount{Type: "bind", Source: dir, Destination: dir, Options: []string{"rbind", "ro"}})
		}
	}
	annotations := map[string]string{"io.containerd.sandbox.v1/idle": "after=1s"} // of which others know nothing
	streams := cio.NewCreator(cio.WithStreams(fromIn, toOut, toOut))
	c, err := s.createWith(ctx, id, streams, spec(session, oci.WithMounts(mounts), oci.WithAnnotations(annotations)))
	if c, err = c.started(ctx, err); err != nil {
		return nil, err
	}
	i := &interpreter{c, in, bufio.NewReader(out)}
	if err := i.ask(small); err != nil {
		return nil, errors.Join(err, c.remove(ctx))
	}
	return i, nil
}

// interprets measures what an interpreter answers that is awake, paused and asleep. With swap, such as zram, all of its
// memory is given back; else only that of files.
func (b *bench) interprets(ctx context.Context, column int, s *subject) (err error) {
	if _, err := os.Stat(python); err != nil {
		fmt.Fprintf(os.Stderr, "bench: NOT MEASURED: rows of Python: %v: apt-get install python3-minimal\n", err)
		return nil
	}
	if b.borrowed(column) {
		return nil
	}
	i, err := s.interpret(ctx, b.id("python"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.in.Close(), i.remove(ctx)) }()
	for range min(b.settings.Rounds, 10) {
		if err := i.ask(small); err != nil {
			return err
		}
		if err := i.timed(b, rowPyAwake, column, func() error { return i.ask(small) }); err != nil {
			return err
		}
		if err := i.task.Pause(ctx); err != nil {
			return err
		}
		err := i.timed(b, rowPyResume, column, func() error { return errors.Join(i.task.Resume(ctx), i.ask(small)) })
		if err != nil || !s.isShim() {
			if err != nil {
				return err
			}
			continue
		}
		if err := b.asleep(ctx, column, i); err != nil {
			return err
		}
	}
	if s.isShim() {
		of := func(name string) float64 { return summarize(b.report.figure(name).Samples[b.run][column]).Median }
		b.add(rowPyTimes, column, of(rowPyAsleep)/of(rowPyResume))
	}
	return nil
}

// asleep measures what an interpreter answers from its sleep: a line that needs little, and one that needs everything.
func (b *bench) asleep(ctx context.Context, column int, i *interpreter) error {
	for _, one := range []struct{ row, line string }{{rowPyAsleep, small}, {rowPyAll, whole}} {
		if err := i.ask(whole); err != nil { // all of it is there
			return err
		}
		before, err := harness.MemoryOf(int(i.task.Pid()))
		if err != nil {
			return err
		}
		if err := awaitFrozen(i.container); err != nil {
			return err
		}
		after, err := i.settled(ctx)
		if err != nil {
			return err
		}
		b.add(rowPyMemory, column, float64(after)/float64(before))
		if err := i.timed(b, one.row, column, func() error { return i.ask(one.line) }); err != nil {
			return err
		}
	}
	return nil
}

// settled returns the memory of a container that has been the same for a second.
func (i *interpreter) settled(ctx context.Context) (now uint64, err error) {
	for last, since := uint64(0), time.Now(); time.Since(since) < time.Second; {
		if now, err = harness.MemoryOf(int(i.task.Pid())); err != nil {
			return 0, err
		}
		if now != last {
			last, since = now, time.Now()
		}
		if !pause(ctx, 100*time.Millisecond) {
			return 0, ctx.Err()
		}
	}
	return now, nil
}
