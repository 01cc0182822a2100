// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

const annotationPidFile = "io.containerd.sandbox.v1/pid-file"

func TestPidFile_NamesInitWhileTheContainerExists(t *testing.T) {
	harness.OursOnly(t, "pid-file")
	e := newEnv(t)
	e.allow("pid-file")
	dir := publicDir(t)
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		e.must(err, "read the pid file")
		return string(text)
	}
	one := e.create("c1", config{opts: with(annotations(annotationPidFile, dir+"/one"))}, "true")
	if got, want := read("one"), strconv.Itoa(int(one.Task.Pid())); got != want {
		t.Errorf("pid file = %q, want %s", got, want)
	}
	e.must(one.process.Start(e.ctx), "start")
	one.exit()
	read("one") // it is there until the container is deleted
	one.delete()
	two := e.run("c2", config{new: withOptions(e, "PidFile = '"+dir+"/{namespace}-{id}'")}, "sleep", "1000")
	if got, want := read(e.namespace+"-c2"), strconv.Itoa(int(two.Task.Pid())); got != want {
		t.Errorf("pid file = %q, want %s", got, want)
	}
	e.must(unix.Kill(e.shim("c2"), unix.SIGKILL), "SIGKILL to the shim")
	wantForgotten(t, e, two)
	harness.Eventually(t, "end of the pid files", func() error {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			return fmt.Errorf("the directory has %v (%w)", left, err)
		}
		return nil
	})
}

func TestPidFile_ThatIsRefused(t *testing.T) {
	harness.OursOnly(t, "pid-file")
	e := newEnv(t)
	e.allow("pid-file")
	precious := filepath.Join(publicDir(t), "precious")
	e.must(os.WriteFile(precious, []byte("data"), 0o600), "write")
	for id, path := range map[string]string{
		"relative": "run/pid", "nowhere": precious + ".d/pid",
		"precious": precious,
	} {
		_, err := e.tryCreate(id, config{opts: with(annotations(annotationPidFile, path))}, "true")
		wantError(t, err, errdefs.ErrInvalidArgument, annotationPidFile, `"`+path+`"`)
	}
	_, err := e.tryCreate("all", config{new: withOptions(e, "PidFile = '"+precious+".pid'")}, "true")
	wantError(t, err, errdefs.ErrInvalidArgument, "PidFile", "{id}")
	if text, err := os.ReadFile(precious); err != nil || string(text) != "data" {
		t.Errorf("the file that was there = %q, %v", text, err)
	}
}

// A container that was created is ready to run, and costs nothing until then.
func TestCreated_UsesNoCPU(t *testing.T) {
	e := newEnv(t)
	c := e.create("c1", config{}, "true")
	harness.CheckAsleep(t, int(c.Task.Pid()))
	e.must(c.process.Start(e.ctx), "start")
	c.wantExit(0)
}

func TestCreated_StartsAfterRestartsOfContainerd(t *testing.T) {
	e := newEnvOn(t, startContainerd(t, shared.Env))
	dir := publicDir(t)
	c := e.create("c1", config{opts: with(bind(dir, "/out", "rw"))}, "sh", "-c", "echo ran >/out/file; exit 3")
	pid := c.Task.Pid()
	for _, stop := range []func(*harness.Containerd) error{(*harness.Containerd).Stop, (*harness.Containerd).Kill} {
		e.must(stop(e.containerd), "stop containerd")
		e.must(e.containerd.Start(e.ctx), "start containerd")
	}
	again := e.reload("c1")
	if got := again.status("c1").Status; got != client.Created || again.Task.Pid() != pid {
		t.Errorf("status %s of pid %d, want created of %d", got, again.Task.Pid(), pid)
	}
	e.must(again.process.Start(e.ctx), "start")
	again.wantExit(3)
	c.closeIO()
	if text, err := os.ReadFile(dir + "/file"); err != nil || string(text) != "ran\n" {
		t.Errorf("what it wrote = %q, %v", text, err)
	}
}

// SHIM_TEST_CREATED says how many; half of them have shims of their own, the other half share one.
func TestCreated_ManyAllStart(t *testing.T) {
	count := harness.Fewer(20)
	if text := os.Getenv("SHIM_TEST_CREATED"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("SHIM_TEST_CREATED %q: %v", text, err)
		}
	}
	e := newEnv(t)
	tasks := make([]client.Task, count)
	began := time.Now()
	for i := range tasks {
		opts := e.plain(fmt.Sprintf("c%d", i))
		if i%2 == 1 {
			opts = append(opts, clientSpec(e, oci.WithProcessArgs("true"), inOneShim))
		}
		container, err := e.client.NewContainer(e.ctx, fmt.Sprintf("c%d", i), opts...)
		e.must(err, "container")
		e.Cleanup(func() { e.remove(container) })
		tasks[i], err = container.NewTask(e.ctx, cio.NullIO)
		e.must(err, "create")
	}
	t.Logf("%d containers were created in %v; %s", count, time.Since(began).Round(time.Millisecond), e.memory(tasks))
	began = time.Now()
	for i, task := range tasks {
		exited, err := task.Wait(e.ctx)
		e.must(err, "wait")
		e.must(task.Start(e.ctx), fmt.Sprintf("start c%d", i))
		status := <-exited
		if code, _, err := status.Result(); err != nil || code != 0 {
			t.Errorf("c%d exited with %d, %v", i, code, err)
		}
	}
	t.Logf("all ran in %v", time.Since(began).Round(time.Millisecond))
	for _, task := range tasks {
		_, err := task.Delete(e.ctx)
		e.must(err, "delete")
	}
}

// memory returns the PSS of created containers and their shims.
func (e *env) memory(tasks []client.Task) string {
	e.Helper()
	inits, shims := 0, 0
	for _, task := range tasks {
		inits += memory(e, int(task.Pid()), "Pss")
	}
	all := harness.Shims(e.namespace, "")
	for _, shim := range all {
		shims += memory(e, shim.Pid, "Pss")
	}
	return fmt.Sprintf("PSS %d KiB for each init, %d KiB for each of %d shims", inits/len(tasks),
		shims/max(len(all), 1), len(all))
}
