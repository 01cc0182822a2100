// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

// named is the IO of a process whose streams have names that the client does not open.
type named struct{ config cio.Config }

func (n named) Config() cio.Config { return n.config }
func (n named) Cancel()            {}
func (n named) Wait()              {}
func (n named) Close() error       { return nil }

// create is a cio.Creator.
func (n named) create(string) (cio.IO, error) { return n, nil }

// logger writes a logging binary and returns its path.
func logger(t *testing.T, mode os.FileMode, script string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "logger")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// readyBound is well above the 10 s that a logging binary has to get ready.
var readyBound = harness.Slow(15 * time.Second)

func TestStreams_ThatCannotBeOpenedAreRefusedByName(t *testing.T) {
	harness.OursOnly(t, "errors of a class that name the stream")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	parent := newEnv(t)
	c := parent.run("other", config{}, "sleep", "1000")
	t.Cleanup(c.kill)
	for i, tt := range []struct {
		name   string
		stdout string
		class  error
		word   string
	}{
		{"a scheme that does not exist", "gopher:///log", errdefs.ErrInvalidArgument, "gopher"},
		{"a file below a file", "file://" + file + "/log", errdefs.ErrFailedPrecondition, file},
		{"a logging binary that does not exist", "binary:///no/such/logger", errdefs.ErrFailedPrecondition, "/no/such/logger"},
		{"a logging binary that may not be run", "binary://" + logger(t, 0o600, "exit 0"), errdefs.ErrFailedPrecondition, "permission denied"},
		{"a logging binary that ends before it is ready", "binary-v2://" + logger(t, 0o700, "exit 3"), errdefs.ErrFailedPrecondition, "ready"},
		{"a logging binary that never gets ready", "binary://" + logger(t, 0o700, "exec sleep 1000"), context.DeadlineExceeded, "ready"},
		{"a stream of CRI", "ttrpc+unix:///run/any.sock?streaming_id=c-stdout", errdefs.ErrInvalidArgument, "unknown scheme"},
	} {
		streams := named{cio.Config{Stdout: tt.stdout}}.create
		want := func(t *testing.T, began time.Time, err error) {
			t.Helper()
			wantError(t, err, tt.class, tt.word)
			if took := time.Since(began); took > readyBound {
				t.Errorf("it took %v, want less than %v", took, readyBound)
			}
		}
		t.Run(tt.name+", of a container", func(t *testing.T) {
			e := parent.sub(t)
			container, err := e.client.NewContainer(e.ctx, fmt.Sprintf("c%d", i), e.plain(fmt.Sprintf("c%d", i))...)
			e.must(err, "container")
			e.Cleanup(func() { e.remove(container) })
			began := time.Now()
			_, err = container.NewTask(e.ctx, streams)
			want(t, began, err)
		})
		t.Run(tt.name+", of an exec", func(t *testing.T) {
			e := parent.sub(t)
			of := *c
			of.e = e
			spec, err := c.container.Spec(e.ctx)
			e.must(err, "spec")
			began := time.Now()
			x, err := c.Task.Exec(e.ctx, fmt.Sprintf("e%d", i), spec.Process, streams)
			if err == nil {
				err = x.Start(e.ctx)
				_, _ = x.Delete(e.ctx) // it is the error that is looked at
			}
			want(t, began, err)
			wantStatus(&of, client.Running)
		})
	}
}

func TestLogger_ContainerOutlivesIt(t *testing.T) {
	harness.OursOnly(t, "that output nobody takes any more does not end a container")
	e := newEnv(t)
	died := filepath.Join(t.TempDir(), "died")
	binary := logger(t, 0o700, "exec 5>&-; read -r line <&3; echo \"$line\" >"+died+"; exit 4")
	container, err := e.client.NewContainer(e.ctx, "c1", append(e.plain("c1"),
		clientSpec(e, oci.WithProcessArgs("sh", "-c",
			"echo one; i=0; while [ $i -lt 10000 ]; do echo more; i=$((i+1)); done; exit 7")))...)
	e.must(err, "container")
	e.Cleanup(func() { e.remove(container) })
	created, err := container.NewTask(e.ctx, named{cio.Config{Stdout: "binary://" + binary}}.create)
	e.must(err, "task")
	p := &process{Process: created, e: e, err: &harness.Buffer{}}
	p.exited, err = created.Wait(e.ctx)
	e.must(err, "wait")
	e.must(created.Start(e.ctx), "start")
	p.wantExit(7)
	if text, err := os.ReadFile(died); string(text) != "one\n" {
		t.Errorf("the logging binary read %q, %v, want %q", text, err, "one\n")
	}
}
