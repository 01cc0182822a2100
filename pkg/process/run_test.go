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

func TestRun_InitIsKilledAtItsWallTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{Limits: &limit.Limits{WallTime: time.Minute}}})
		time.Sleep(time.Hour) // created and not started
		must(t, w.Init().Start(ctx))
		exit, err := w.Init().Wait(ctx)
		must(t, err)
		v := w.Verdicts()
		if len(v) != 1 || v[0].Limit != limit.WallTime || v[0].Wall != time.Minute || v[0].Status != exit.Status {
			t.Errorf("verdicts %+v, exit %+v", v, exit)
		}
		time.Sleep(time.Hour) // nothing more is killed
		w.wantLog(t, "create c1 | start c1 | exit c1 137")
	})
}

// A busy machine tells the shim late that a program runs.
func TestRun_WallTimeHasWhatTheStartTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gates["start"] = make(chan struct{})
		w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{Limits: &limit.Limits{}}})
		time.AfterFunc(time.Second, func() { close(f.gates["start"]) })
		must(t, w.Init().Start(ctx))
		f.init.die(0)
		<-w.Init().Exited()
		if v := w.Verdicts(); len(v) != 1 || v[0].Wall != time.Second {
			t.Errorf("verdicts %+v, want one with a second", v)
		}
	})
}

// The verdict is written before the exit is told, also on one that never ran its program.
func TestRun_VerdictComesBeforeTheExit(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{
			Limits: &limit.Limits{}, VerdictFile: filepath.Join(dir, "{exec}"),
		}})
		f.init.die(3)
		<-w.Init().Exited()
		if _, err := os.Stat(filepath.Join(dir, limit.InitName)); err != nil {
			t.Error(err)
		}
		if v := w.Verdicts(); len(v) != 1 || !v[0].Started.IsZero() || v[0].Wall != 0 || v[0].Status != 3 {
			t.Errorf("verdicts %+v", v)
		}
	})
}

func TestRun_ALimitThatIsReachedBeforeTheStartCountsThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{Limits: &limit.Limits{}}})
		w.Init().killOverLimit(limit.Output)
		w.Init().killOverLimit(limit.WallTime) // the first one counts
		synctest.Wait()
		if w.Init().Status().State != Created {
			t.Fatal("killed before the start was told")
		}
		must(t, w.Init().Start(ctx))
		<-w.Init().Exited()
		if v := w.Verdicts(); len(v) != 1 || v[0].Limit != limit.Output {
			t.Errorf("verdicts %+v", v)
		}
		w.wantLog(t, "create c1 | start c1 | exit c1 137")
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
		w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{Limits: &limit.Limits{CPUTime: time.Second}}})
		must(t, w.Init().Start(ctx))
		time.Sleep(time.Minute)
		if w.Init().Status().State != Running {
			t.Fatal("killed")
		}
		must(t, os.Remove(usage))
		must(t, os.WriteFile(usage, []byte("2000000000\n"), 0o600)) // ns
		<-w.Init().Exited()
		if v := w.Verdicts(); len(v) != 1 || v[0].Limit != limit.CPUTime {
			t.Errorf("verdicts %+v, want that it used up its CPU time", v)
		}
	})
}

// On v1 and v2 the watch of the container counts the kills in the cgroups of execs too, and these have verdicts.
func TestRun_AContainerIsNotJudgedForAnExecThatRanOutOfMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		ofExec, all uint64
		limited     bool
		pod         string // memory.max of the cgroup above
		want        limit.Reason
		wantKills   uint64
	}{
		"of the exec alone":              {2, 2, true, "max", limit.None, 0},
		"of both":                        {2, 3, true, "max", limit.Memory, 1},
		"of the container without limit": {0, 1, false, "max", limit.None, 1},
		"of the container in a pod":      {0, 1, false, "1048576", limit.Memory, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c1")
			must(t, os.Mkdir(dir, 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "../memory.max"), []byte(tt.pod+"\n"), 0o600))
			count := func(kills uint64) {
				must(t, os.WriteFile(filepath.Join(dir, "memory.events"), fmt.Appendf(nil, "oom_kill %d\n", kills), 0o600))
			}
			count(0)
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.group = cgroup.New(map[string]string{"": dir})
				f.account = &cgroup.Account{OOMKills: tt.ofExec}
				memory := int64(64 << 20)
				w := newWorldOf(t, f, Config{
					ID: "c1", Bundle: "/b", Options: Options{Limits: &limit.Limits{}, ExecLimits: &limit.Limits{}},
					Spec: &specs.Spec{Linux: &specs.Linux{}},
				})
				must(t, w.Init().Start(ctx))
				if tt.limited {
					must(t, w.Update(ctx, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}}))
				}
				e := w.addExec(t, "e1")
				must(t, e.Start(ctx))
				count(tt.all)
				f.execs[0].die(137)
				<-e.Exited()
				f.init.die(143)
				<-w.Init().Exited()
				v := w.Verdicts()
				if len(v) != 2 || v[1].Limit != tt.want || v[1].OOMKills != tt.wantKills || v[0].OOMKills != tt.ofExec {
					t.Errorf("verdicts %+v, want %q and %d kills of the container", v, tt.want, tt.wantKills)
				}
			})
		})
	}
}

// systemd removes an empty scope, and with it what the kernel counted.
func TestRun_VerdictSaysWhatInitUsedIfTheCgroupIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c1")
	must(t, os.Mkdir(dir, 0o755))
	f := newFake()
	f.group = cgroup.New(map[string]string{"": dir})
	w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{Limits: &limit.Limits{}}})
	f.init.used = cgroup.Account{
		Usage: cgroup.Usage{CPU: 3 * time.Second, Memory: 7 << 20}, User: 2 * time.Second, System: time.Second,
	}
	must(t, w.Init().Start(ctx))
	must(t, os.Remove(dir))
	f.init.die(0)
	<-w.Init().Exited()
	v := w.Verdicts()
	if len(v) != 1 || v[0].CPU != 3*time.Second || v[0].User != 2*time.Second || v[0].MemoryPeak != 7<<20 {
		t.Errorf("verdicts %+v, want one with what init used", v)
	}
}

// On v1 the kernel kills one process where memory is used up.
func TestRun_AContainerEndsWhenItsMemoryIsUsedUpOnV1(t *testing.T) {
	dir := t.TempDir()
	count := func(at string, kills int) {
		must(t, os.WriteFile(filepath.Join(dir, at, "memory.oom_control"), fmt.Appendf(nil, "oom_kill %d\n", kills), 0o600))
	}
	for at, most := range map[string]string{"": "33554432", "exec-1": "16777216"} {
		must(t, os.MkdirAll(filepath.Join(dir, at), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, at, "memory.limit_in_bytes"), []byte(most), 0o600))
		must(t, os.WriteFile(filepath.Join(dir, at, "cgroup.event_control"), nil, 0o600))
		count(at, 1) // before the container
	}
	f := newFake()
	f.group = cgroup.New(map[string]string{"memory": dir})
	w := newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Options: Options{Limits: &limit.Limits{Memory: 32 << 20}}})
	must(t, w.Init().Start(ctx))
	count("exec-1", 3) // it has a limit of its own
	w.oom.Check()
	w.Init().run.mu.Lock()
	ended := w.Init().run.ended
	w.Init().run.mu.Unlock()
	if ended != limit.None || w.Init().Status().State != Running {
		t.Errorf("ended by %q for a kill in an exec with a limit of its own", ended)
	}
	count("", 2)
	w.oom.Check()
	<-w.Init().Exited()
	if v := w.Verdicts(); len(v) != 1 || v[0].Limit != limit.Memory || v[0].Status != 137 {
		t.Errorf("verdicts %+v", v)
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
		defaults := &limit.Limits{Memory: 64 << 20, OpenFiles: 10}
		w := newWorldOf(t, f, Config{
			ID: "c1", Bundle: "/b", Options: Options{ExecLimits: defaults},
			Spec: &specs.Spec{Process: &specs.Process{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 100, Soft: 100}}}},
		})
		given := &specs.Process{Env: []string{"A=b", limit.Prefix + "PIDS=5"}}
		must(t, w.AddExec("e1", given, stdio.Config{}))
		p, err := w.Process("e1")
		must(t, err)
		want := limit.Limits{Memory: 64 << 20, OpenFiles: 10, Pids: 5}
		if *p.limits() != want || len(p.spec.Env) != 1 || len(given.Env) != 2 || p.spec.Rlimits[0].Hard != 10 {
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
