// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/stdio"
)

// runWith is a container whose execs have limits, and one of them, which runs.
func runWith(t *testing.T, f *fake, l *limit.Limits, verdictFile string) (*world, *Process) {
	t.Helper()
	w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{ExecLimits: l, VerdictFile: verdictFile}})
	must(t, w.Init().Start(ctx))
	p := w.addExec(t, "e1")
	must(t, p.Start(ctx))
	return w, p
}

func TestRun_IsKilledAtItsWallTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w, p := runWith(t, f, &limit.Limits{WallTime: time.Minute}, "")
		exit, err := p.Wait(ctx)
		must(t, err)
		v := w.Verdicts()
		if len(v) != 1 || v[0].Limit != limit.WallTime || v[0].Wall != time.Minute || v[0].Status != exit.Status {
			t.Errorf("verdicts %+v, exit %+v", v, exit)
		}
		time.Sleep(time.Hour) // nothing more is killed
		f.init.die(0)
		w.wantLog(t, "create c1 | start c1 | exec-added e1 | exec-started e1 | exit e1 137 | exit c1 0")
	})
}

// A busy machine tells the shim late that a program runs.
func TestRun_WallTimeHasWhatTheStartTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gates["exec"] = make(chan struct{})
		time.AfterFunc(time.Second, func() { close(f.gates["exec"]) })
		w, p := runWith(t, f, &limit.Limits{}, "")
		f.execs[0].die(0)
		<-p.Exited()
		if v := w.Verdicts(); len(v) != 1 || v[0].Wall != time.Second {
			t.Errorf("verdicts %+v, want one with a second", v)
		}
		f.init.die(0)
	})
}

func TestRun_VerdictComesBeforeTheExit(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w, p := runWith(t, f, &limit.Limits{}, filepath.Join(dir, "{exec}"))
		f.execs[0].die(3)
		<-p.Exited()
		if _, err := os.Stat(filepath.Join(dir, "e1")); err != nil {
			t.Error(err)
		}
		if v := w.Verdicts(); len(v) != 1 || v[0].Status != 3 {
			t.Errorf("verdicts %+v", v)
		}
		f.init.die(0)
	})
}

// Want of descriptors, say, is nothing that the run has done.
func TestRun_IsNotKilledBecauseItsCPUTimeCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	usage := filepath.Join(dir, "cpuacct.usage")
	must(t, os.Mkdir(usage, 0o755)) // which cannot be read
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.group = cgroup.New(map[string]string{"cpuacct": dir})
		w, p := runWith(t, f, &limit.Limits{CPUTime: time.Second}, "")
		time.Sleep(time.Minute)
		if p.Status().State != Running {
			t.Fatal("killed")
		}
		must(t, os.Remove(usage))
		must(t, os.WriteFile(usage, []byte("2000000000\n"), 0o600)) // ns
		<-p.Exited()
		if v := w.Verdicts(); len(v) != 1 || v[0].Limit != limit.CPUTime {
			t.Errorf("verdicts %+v, want that it used up its CPU time", v)
		}
		f.init.die(0)
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
			must(t, os.WriteFile(filepath.Join(dir, "../memory.max"), []byte(tt.pod+"\n"), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "memory.max"), []byte(tt.own+"\n"), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "memory.events"), []byte("oom_kill 0\n"), 0o600))
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.group = cgroup.New(map[string]string{"": dir})
				f.account.OOMKills = 2
				w, p := runWith(t, f, &limit.Limits{}, "")
				f.execs[0].die(137)
				<-p.Exited()
				if v := w.Verdicts(); len(v) != 1 || v[0].Limit != tt.want || v[0].OOMKills != 2 {
					t.Errorf("verdicts %+v, want %q", v, tt.want)
				}
				f.init.die(0)
				<-w.Init().Exited()
			})
		})
	}
}

func TestRun_KeepsTheLastVerdicts(t *testing.T) {
	c := &Container{}
	for i := range keptVerdicts + 5 {
		c.keepVerdict(limit.Verdict{Exec: fmt.Sprint(i)})
	}
	if v := c.Verdicts(); len(v) != keptVerdicts || v[0].Exec != "5" || v[keptVerdicts-1].Exec != fmt.Sprint(keptVerdicts+4) {
		t.Errorf("%d verdicts from %s", len(v), v[0].Exec)
	}
}

func TestAddExec_TakesLimitsOutOfTheEnvironment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		defaults := &limit.Limits{Memory: 64 << 20}
		w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{ExecLimits: defaults}})
		given := &specs.Process{Env: []string{"A=b", limit.Prefix + "PIDS=5"}}
		must(t, w.AddExec("e1", given, stdio.Config{}))
		p, err := w.Process("e1")
		must(t, err)
		want := limit.Limits{Memory: 64 << 20, Pids: 5}
		if *p.limits() != want || len(p.spec.Env) != 1 || len(given.Env) != 2 {
			t.Errorf("limits %+v, process %+v", *p.limits(), p.spec)
		}
		if w.AddExec("e2", &specs.Process{Env: []string{limit.Prefix + "MEMORY=1Gi"}}, stdio.Config{}) == nil {
			t.Error("a higher limit is accepted")
		}
		if _, err := w.Process("e2"); err == nil {
			t.Error("an exec with a bad limit is registered")
		}
		f.init.die(0)
		<-w.Init().Exited()
	})
}
