// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// Nobody deletes such execs.
func TestExecSync_ContainerdKilledMeanwhileCostsNoWakeups(t *testing.T) {
	harness.OursOnly(t, "an idle shim that does not wake up")
	eachWayAlone(t, func(e *env) {
		const execs = 10
		p := e.pod("p")
		dir := e.volume()
		c := p.run("c", forever, mounted(dir, "/gate"))
		before := c.usage()
		shim := e.shim(p)
		var calls sync.WaitGroup
		for i := range execs {
			calls.Go(func() {
				_, err := c.tryExec(0, "sh", "-c", fmt.Sprintf("echo begun >/gate/begun%d\n"+
					"until [ -e /gate/open ]; do usleep 10000; done; echo unread; echo unread >&2\n"+
					"echo done >/gate/done%[1]d", i))
				if err == nil {
					e.Error("exec = nil, although containerd was killed")
				}
			})
		}
		wantFiles(e, filepath.Join(dir, "begun*"), execs)
		outputs, err := filepath.Glob(filepath.Join(e.daemon.State, "io.containerd.grpc.v1.cri", "containers", c.id,
			"io", "*", "*-std*"))
		e.must(err, "fifos")
		// Those of init are not counted.
		outputs = slices.DeleteFunc(outputs,
			func(name string) bool { return strings.HasPrefix(filepath.Base(name), c.id) })
		e.must(e.daemon.Kill(), "kill containerd")
		calls.Wait()
		e.must(os.WriteFile(filepath.Join(dir, "open"), nil, 0o644), "let the execs end")
		wantFiles(e, filepath.Join(dir, "done*"), execs)

		// The shim tries to send the exits. Looking 20 times a second at each output would make 1200.
		harness.CheckNearlyAsleep(e, shim, 2*execs)
		outputs = read(e, outputs)
		if len(outputs) != 2*execs {
			e.Errorf("unread outputs: %q, want those of %d execs", outputs, execs)
		}
		harness.CheckUsage(e, shim, before, 2*execs+8) // a thread waited for a reader of each
		e.must(e.daemon.Start(e.ctx), "start containerd again")
		c.wantExec("still here", "echo", "still here")
		p.remove()
	})
}

// wantFiles waits until n files match.
func wantFiles(e *env, pattern string, n int) {
	e.Helper()
	harness.Eventually(e, fmt.Sprintf("%d files %s", n, filepath.Base(pattern)), func() error {
		names, err := filepath.Glob(pattern)
		if err == nil && len(names) != n {
			err = fmt.Errorf("%d files", len(names))
		}
		return err
	})
}

// read comes to read the fifos that are named, to the end, and returns those with what the execs wrote.
func read(e *env, fifos []string) (unread []string) {
	e.Helper()
	for _, name := range fifos {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		e.must(err, "open an output")
		var text strings.Builder
		_, err = f.WriteTo(&text)
		e.must(err, "read "+name)
		e.must(f.Close(), "close "+name)
		if text.String() == "unread\n" {
			unread = append(unread, name)
		}
	}
	return unread
}
