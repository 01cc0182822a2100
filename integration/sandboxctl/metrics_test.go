// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// serve starts sandboxctl metrics, and returns the URL that it prints.
func (e *env) serve() string {
	e.Helper()
	cmd := e.command("metrics", "--listen", "127.0.0.1:0")
	cmd.Stderr = nil
	said, err := cmd.StderrPipe()
	e.must(err)
	e.must(cmd.Start())
	e.Cleanup(func() {
		e.must(cmd.Process.Signal(unix.SIGTERM))
		if err := cmd.Wait(); err != nil {
			e.Errorf("sandboxctl metrics: %v", err)
		}
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	e.must(err)
	return strings.TrimSpace(strings.TrimPrefix(line, "metrics at "))
}

// scrape returns the families by name, after promlint has read them.
func (e *env) scrape(url string) map[string]*dto.MetricFamily {
	e.Helper()
	answer, err := http.Get(url)
	e.must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	e.must(err)
	if answer.StatusCode != http.StatusOK {
		e.Fatalf("%s: %s: %s", url, answer.Status, text)
	}
	problems, err := promlint.New(strings.NewReader(string(text))).Lint()
	e.must(err)
	for _, p := range problems {
		e.Errorf("%s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	e.must(err)
	return families
}

// find returns the metric with these labels among others; nil if there is none.
func find(f *dto.MetricFamily, labels map[string]string) *dto.Metric {
	for _, m := range f.GetMetric() {
		matching := 0
		for _, l := range m.GetLabel() {
			if want, ok := labels[l.GetName()]; ok && want == l.GetValue() {
				matching++
			}
		}
		if matching == len(labels) {
			return m
		}
	}
	return nil
}

const prefix = "containerd_sandbox_"

func TestMetrics_AreThoseOfContainersAndShims(t *testing.T) {
	e := newEnv(t)
	url := e.serve()
	if up := e.scrape(url)[prefix+"up"]; up.GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("up = %v", up)
	}
	task := e.run("c1", harness.Ours, nil)
	e.run("old", runc, nil)
	for i := range 3 {
		e.exec(task, fmt.Sprintf("e%d", i), true, "true")
	}
	c1 := map[string]string{"namespace": e.namespace, "pod": "", "container": "c1"}
	old := map[string]string{"namespace": e.namespace, "pod": "", "container": "old"}
	var got map[string]*dto.MetricFamily
	harness.Eventually(t, "the execs are counted", func() error {
		got = e.scrape(url)
		if m := find(got[prefix+"container_execs_started_total"], c1); m.GetCounter().GetValue() != 3 {
			return fmt.Errorf("execs = %v", m)
		}
		return nil
	})
	for _, labels := range []map[string]string{c1, old} {
		if v := find(got[prefix+"container_cpu_usage_seconds_total"], labels).GetCounter().GetValue(); v <= 0 || v > 60 {
			t.Errorf("CPU time of %v = %v", labels, v)
		}
		if v := find(got[prefix+"container_memory_working_set_bytes"], labels).GetGauge().GetValue(); v < 4096 || v > 1<<30 {
			t.Errorf("memory of %v = %v", labels, v)
		}
	}
	if m := find(got[prefix+"container_execs_started_total"], old); m != nil {
		t.Errorf("execs of runc's shim are counted: %v", m)
	}
	for operation, want := range map[string]uint64{"create": 1, "start": 1, "exec": 3} {
		h := find(got[prefix+"operation_duration_seconds"], map[string]string{"namespace": e.namespace, "operation": operation}).GetHistogram()
		if h.GetSampleCount() != want || h.GetSampleSum() <= 0 || h.GetSampleSum() > 60 {
			t.Errorf("%s: %d in %v s, want %d", operation, h.GetSampleCount(), h.GetSampleSum(), want)
		}
	}
	// A histogram does not go back when a shim ends, nor does it forget what was counted.
	_, err := task.Delete(e.ctx, client.WithProcessKill)
	e.must(err)
	harness.Eventually(t, "the container is gone", func() error {
		got = e.scrape(url)
		if m := find(got[prefix+"container_state"], c1); len(m.GetLabel()) > 0 && find(&dto.MetricFamily{Metric: []*dto.Metric{m}}, map[string]string{"state": "no-task"}) == nil {
			return fmt.Errorf("state %v", m)
		}
		return nil
	})
	h := find(got[prefix+"operation_duration_seconds"], map[string]string{"namespace": e.namespace, "operation": "exec"}).GetHistogram()
	if h.GetSampleCount() != 3 {
		t.Errorf("%d execs are counted after the end of the shim, want 3", h.GetSampleCount())
	}
}

// The cgroup goes with the container, and with it the kernel's count.
func TestMetrics_OOMKillsThatEndAContainerAreCounted(t *testing.T) {
	e := newEnv(t)
	url := e.serve()
	e.scrape(url)
	const limit = 24 << 20
	c := e.container("c1", harness.Ours, []oci.SpecOpts{
		oci.WithMemoryLimit(limit), oci.WithMemorySwap(limit),
		oci.WithProcessArgs("dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1"),
	})
	for kills := range 2 {
		task, err := c.NewTask(e.ctx, cio.NullIO)
		e.must(err)
		ended, err := task.Wait(e.ctx)
		e.must(err)
		e.must(task.Start(e.ctx))
		if status := <-ended; status.ExitCode() != 137 {
			t.Errorf("status %d, want 137", status.ExitCode())
		}
		_, err = task.Delete(e.ctx)
		e.must(err)
		harness.Eventually(t, "the kill is counted", func() error {
			m := find(e.scrape(url)[prefix+"container_oom_events_total"], map[string]string{"container": "c1"})
			if m.GetCounter().GetValue() != float64(kills+1) {
				return fmt.Errorf("%v, want %d", m, kills+1)
			}
			return nil
		})
	}
}

func TestMetrics_ShimThatHangsDoesNotHoldAScrape(t *testing.T) {
	e := newEnv(t)
	e.run("hung", harness.Ours, nil)
	e.run("fine", harness.Ours, nil)
	url := e.serve()
	for range 3 { // from the second on the tool follows events, and asks no shim but for its counters
		if m := find(e.scrape(url)[prefix+"shim_up"], map[string]string{"pod": "hung"}); m.GetGauge().GetValue() != 1 {
			t.Errorf("shim_up = %v, want 1", m)
		}
	}
	shim := e.shim("hung")
	harness.Stop(t, shim)
	for range 2 {
		start := time.Now()
		got := e.scrape(url)
		if took := time.Since(start); took > harness.Slow(6*time.Second) {
			t.Errorf("a scrape took %v", took)
		}
		for pod, want := range map[string]float64{"hung": 0, "fine": 1} {
			m := find(got[prefix+"shim_up"], map[string]string{"namespace": e.namespace, "pod": pod})
			if m == nil || m.GetGauge().GetValue() != want {
				t.Errorf("shim_up of %s = %v, want %v", pod, m, want)
			}
		}
	}
}
