// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestExec_IsKilledAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{ExecTimeout: time.Minute}})
		must(t, w.Init().Start(ctx))
		short, long := w.addExec(t, "short"), w.addExec(t, "long")
		began := time.Now()
		must(t, short.Start(ctx))
		must(t, long.Start(ctx))
		time.Sleep(30 * time.Second)
		f.execs[0].die(0)
		exit, err := long.Wait(ctx)
		must(t, err)
		if took := time.Since(began); exit.Status != 137 || took != time.Minute {
			t.Errorf("status %d after %v, want 137 after a minute", exit.Status, took)
		}
		time.Sleep(time.Hour) // nothing more is killed
		f.init.die(0)
		w.wantLog(t, "create c1 | start c1 | exec-added short | exec-added long | exec-started short | exec-started long | exit short 0 | exit long 137 | exit c1 0")
	})
}
