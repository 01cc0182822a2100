// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/stdio"
)

// runWith is a container whose execs have limits, and one of them, which runs.
func runWith(t *testing.T, r *processtest.Runtime, l *limit.Limits) (*world, *process.Process) {
	t.Helper()
	verdicts := filepath.Join(t.TempDir(), "{exec}")
	w := newWorld(t, r, process.Config{Options: process.Options{ExecLimits: l, VerdictFile: verdicts}})
	must(t, w.Init().Start(ctx))
	return w, w.startExec("e1")
}

// verdict reads the verdict on e1.
func (w *world) verdict() (v limit.Verdict) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(w.runtime.Containers()[0].Config.VerdictFile), "e1"))
	must(w.t, err)
	must(w.t, json.Unmarshal(text, &v))
	return v
}

func TestRun_IsKilledAtItsWallTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := runWith(t, &processtest.Runtime{}, &limit.Limits{WallTime: time.Minute})
		w.wantStatus(p, 137)
		if v := w.verdict(); v.Limit != limit.WallTime || v.Wall != time.Minute || v.Status != 137 {
			t.Errorf("verdict %+v", v)
		}
		time.Sleep(time.Hour) // nothing more is killed
		w.dies(0)
		w.wantLog("… | exec-added e1 | exec-started e1 | exit e1 137 | exit c1 0")
	})
}

// A busy machine tells the shim late that a program runs.
func TestRun_WallTimeHasWhatTheStartTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &processtest.Runtime{}
		_, open := r.Hold("exec")
		time.AfterFunc(time.Second, open)
		w, p := runWith(t, r, &limit.Limits{})
		w.exec(0).Die(0)
		w.wantStatus(p, 0)
		if v := w.verdict(); v.Wall != time.Second {
			t.Errorf("verdict %+v, want one with a second", v)
		}
	})
}

func TestRun_VerdictComesBeforeTheExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := runWith(t, &processtest.Runtime{}, &limit.Limits{})
		w.exec(0).Die(3)
		w.wantStatus(p, 3)
		if v := w.verdict(); v.Status != 3 {
			t.Errorf("verdict %+v", v)
		}
	})
}

// Want of descriptors, say, is nothing that the run has done.
func TestRun_IsNotKilledBecauseItsCPUTimeCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	usage := filepath.Join(dir, "cpuacct.usage")
	must(t, os.Mkdir(usage, 0o755)) // which cannot be read
	synctest.Test(t, func(t *testing.T) {
		r := &processtest.Runtime{Group: cgroup.New(map[string]string{"cpuacct": dir})}
		w, p := runWith(t, r, &limit.Limits{CPUTime: time.Second})
		time.Sleep(time.Minute)
		w.wantState(p, process.Running)
		must(t, os.Remove(usage))
		must(t, os.WriteFile(usage, []byte("2000000000\n"), 0o600)) // ns
		w.wantStatus(p, 137)
		if v := w.verdict(); v.Limit != limit.CPUTime {
			t.Errorf("verdict %+v, want that it used up its CPU time", v)
		}
	})
}

// The limit of memory may be the container's or the pod's. Without one the machine had no memory left.
func TestRun_MemoryOfTheContainer(t *testing.T) {
	for name, tt := range map[string]struct {
		own, pod string // memory.max of the container's cgroup, and of that above
		want     limit.Reason
	}{
		"no limit":         {"max", "max", limit.None},
		"of the container": {"1048576", "max", limit.Memory},
		"of the pod":       {"max", "1048576", limit.Memory},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c1")
			must(t, os.Mkdir(dir, 0o755))
			files(t, dir, map[string]string{
				"../memory.max": tt.pod, "memory.max": tt.own, "memory.events": "oom_kill 0\n",
			})
			synctest.Test(t, func(t *testing.T) {
				r := &processtest.Runtime{Group: cgroup.New(map[string]string{"": dir})}
				r.Account.OOMKills = 2
				w, p := runWith(t, r, &limit.Limits{})
				w.exec(0).Die(137)
				w.wantStatus(p, 137)
				if v := w.verdict(); v.Limit != tt.want || v.OOMKills != 2 {
					t.Errorf("verdict %+v, want %q", v, tt.want)
				}
			})
		})
	}
}

func TestAddExec_TakesLimitsOutOfTheEnvironment(t *testing.T) {
	defaults := &limit.Limits{Memory: 64 << 20}
	w := newWorld(t, &processtest.Runtime{}, process.Config{Options: process.Options{ExecLimits: defaults}})
	given := &specs.Process{Env: []string{"A=b", "SANDBOX_LIMIT_PIDS=5"}}
	must(t, w.AddExec("e1", given, stdio.Config{}))
	p, err := w.Process("e1")
	must(t, err)
	want := limit.Limits{Memory: 64 << 20, Pids: 5}
	if *p.Limits() != want || len(p.Spec().Env) != 1 || len(given.Env) != 2 {
		t.Errorf("limits %+v, process %+v", *p.Limits(), p.Spec())
	}
	if w.AddExec("e2", &specs.Process{Env: []string{"SANDBOX_LIMIT_MEMORY=1Gi"}}, stdio.Config{}) == nil {
		t.Error("a higher limit is accepted")
	}
	if _, err := w.Process("e2"); err == nil {
		t.Error("an exec with a bad limit is registered")
	}
}
