// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

const prefix = "containerd_sandbox_"

// ofContainer and ofPod are the labels of all series except those of the node: their number is that of containers.
var (
	ofContainer = []string{"namespace", "pod", "container"}
	ofPod       = []string{"namespace", "pod"}
)

// metric is one of each container. There is no series for it if value returns false.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*node.Container) (float64, bool)
}

func counter(name, help string, value func(*node.Container) (float64, bool)) metric {
	return metric{prometheus.NewDesc(prefix+"container_"+name, help, ofContainer, nil), prometheus.CounterValue, value}
}

func gauge(name, help string, value func(*node.Container) (float64, bool)) metric {
	return metric{prometheus.NewDesc(prefix+"container_"+name, help, ofContainer, nil), prometheus.GaugeValue, value}
}

// used returns the value of a container that has a cgroup, unless unknown is true.
func used(
	unknown func(measure.Unknown) bool, value func(*measure.Usage) float64,
) func(*node.Container) (float64, bool) {
	return func(c *node.Container) (float64, bool) {
		return value(&c.Usage), c.Usage.Cgroup != "" && !unknown(c.Usage.Unknown)
	}
}

// limit returns a value of which 0 means none.
func limit(value func(*measure.Usage) float64) func(*node.Container) (float64, bool) {
	return func(c *node.Container) (float64, bool) { v := value(&c.Usage); return v, v > 0 }
}

func containerMetrics() []metric {
	cpu := func(u measure.Unknown) bool { return u.CPU }
	times := func(u measure.Unknown) bool { return u.Times }
	throttling := func(u measure.Unknown) bool { return u.Throttling }
	return []metric{
		counter("cpu_usage_seconds_total", "CPU time used.",
			used(cpu, func(u *measure.Usage) float64 { return u.CPU.Seconds() })),
		counter("cpu_user_seconds_total", "CPU time used in programs.",
			used(times, func(u *measure.Usage) float64 { return u.User.Seconds() })),
		counter("cpu_system_seconds_total", "CPU time used in the kernel.",
			used(times, func(u *measure.Usage) float64 { return u.System.Seconds() })),
		counter("cpu_periods_total", "Periods of the CPU limit in which the container ran.",
			used(throttling, func(u *measure.Usage) float64 { return float64(u.Periods) })),
		counter("cpu_throttled_periods_total", "Periods of the CPU limit in which the container had to wait.",
			used(throttling, func(u *measure.Usage) float64 { return float64(u.Throttled) })),
		counter("cpu_throttled_seconds_total", "Time for which the CPU limit made threads wait.",
			used(throttling, func(u *measure.Usage) float64 { return u.Waited.Seconds() })),
		gauge("cpu_limit_cpus", "CPU limit, in CPUs. Absent without a limit.",
			limit(func(u *measure.Usage) float64 { return u.CPULimit })),
		gauge("cpus", "CPUs that the container may run on.", func(c *node.Container) (float64, bool) {
			n := count(c.Usage.CPUs)
			return float64(n), n > 0
		}),
		gauge("memory_working_set_bytes", "Memory in use, without what the kernel can drop at once.",
			used(func(u measure.Unknown) bool { return u.Memory }, func(u *measure.Usage) float64 { return float64(u.Memory) })),
		gauge("memory_limit_bytes", "Memory limit. Absent without a limit.",
			limit(func(u *measure.Usage) float64 { return float64(u.MemoryLimit) })),
		counter("oom_kills_total", "Processes that the kernel killed for lack of memory.",
			used(func(u measure.Unknown) bool { return u.OOMKills },
				func(u *measure.Usage) float64 { return float64(u.OOMKills) })),
		gauge("processes", "Processes and threads.",
			used(func(u measure.Unknown) bool { return u.Pids }, func(u *measure.Usage) float64 { return float64(u.Pids) })),
		gauge("processes_limit", "Limit of processes and threads. Absent without a limit.",
			limit(func(u *measure.Usage) float64 { return float64(u.PidsLimit) })),
		counter("execs_started_total", "Execs whose program ran. Absent for runtimes that do not count.",
			func(c *node.Container) (float64, bool) { return float64(c.ExecsStarted), c.ExecsKnown }),
		gauge("execs", "Execs that run now. Absent for runtimes that do not count.",
			func(c *node.Container) (float64, bool) { return float64(c.Execs), c.ExecsKnown }),
		gauge("cpuset_kept", "Whether the container keeps CPUs that are not its source's. Absent if it follows none.",
			func(c *node.Container) (float64, bool) {
				return truth(c.CPUSet != nil && (c.CPUSet.Pinned || c.CPUSet.Error != "")), c.CPUSet != nil
			}),
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// count returns how many CPUs a list like 0-3,8 has.
func count(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, bits.UintSize-1)
		to, err2 := strconv.ParseUint(last, 10, bits.UintSize-1)
		if err == nil && err2 == nil && to >= from {
			n += int(to-from) + 1
		}
	}
	return n
}

// Descriptions of what is not one number of each container.
var (
	upDesc    = prometheus.NewDesc(prefix+"up", "Whether containerd answered.", nil, nil)
	tookDesc  = prometheus.NewDesc(prefix+"scrape_duration_seconds", "How long this scrape took.", nil, nil)
	stateDesc = prometheus.NewDesc(prefix+"container_state", "1 for the state that a container is in.",
		append(ofContainer[:3:3], "state"), nil)
	infoDesc = prometheus.NewDesc(prefix+"container_info", "1, with what a container is in labels.",
		append(ofContainer[:3:3], "id", "runtime", "image", "cpuset_source"), nil)
	pressureDesc = prometheus.NewDesc(prefix+"container_pressure_waiting_seconds_total",
		"Time in which some task of the container waited for a resource.", append(ofContainer[:3:3], "resource"), nil)
	stalledDesc = prometheus.NewDesc(prefix+"container_pressure_stalled_seconds_total",
		"Time in which all tasks of the container waited for a resource.", append(ofContainer[:3:3], "resource"), nil)
	shimUpDesc  = prometheus.NewDesc(prefix+"shim_up", "Whether the shim of a pod answered.", ofPod, nil)
	shimCPUDesc = prometheus.NewDesc(prefix+"shim_cpu_usage_seconds_total", "CPU time used by the shim.", ofPod, nil)
	shimRSSDesc = prometheus.NewDesc(prefix+"shim_memory_rss_bytes", "Resident memory of the shim.", ofPod, nil)
	opsDesc     = prometheus.NewDesc(prefix+"operation_duration_seconds",
		"How long create, start, exec (its start) and delete took in the shims.", []string{"namespace", "operation"}, nil)
	failedDesc = prometheus.NewDesc(prefix+"operation_failures_total", "Operations that failed, by the shims' count.",
		[]string{"namespace", "operation"}, nil)
)

// containers returns one for each set of labels: a pod's container that was started again has the name of the last one.
func containers(s *node.Snapshot) map[[3]string]*node.Container {
	chosen := map[[3]string]*node.Container{}
	for i := range s.Pods {
		p := &s.Pods[i]
		for j := range p.Containers {
			c := &p.Containers[j]
			labels := [3]string{c.Namespace, podLabel(p), c.Name}
			if other := chosen[labels]; other == nil || rank(c) > rank(other) {
				chosen[labels] = c
			}
		}
	}
	return chosen
}

// podLabel returns "" for a container without a pod.
func podLabel(p *node.Pod) string {
	if !p.Sandbox {
		return ""
	}
	return p.Name
}

func rank(c *node.Container) int {
	switch c.State {
	case node.Running, node.Pausing, node.Paused:
		return 3
	case node.Created:
		return 2
	case node.Stopped, node.Dead:
		return 1
	case node.NoTask:
	}
	return 0
}

func collectContainers(s *node.Snapshot, metrics []metric, send chan<- prometheus.Metric) {
	for labels, c := range containers(s) {
		l := labels[:]
		for _, m := range metrics {
			if v, ok := m.value(c); ok {
				send <- prometheus.MustNewConstMetric(m.desc, m.kind, v, l...)
			}
		}
		send <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, 1, append(l[:3:3], string(c.State))...)
		source := ""
		if c.CPUSet != nil {
			source = c.CPUSet.Source
		}
		send <- prometheus.MustNewConstMetric(infoDesc, prometheus.GaugeValue, 1,
			append(l[:3:3], c.ID, c.Runtime, c.Image, source)...)
		for resource, psi := range map[string]*measure.PSI{
			"cpu": c.Usage.Pressure.CPU, "memory": c.Usage.Pressure.Memory, "io": c.Usage.Pressure.IO,
		} {
			if psi == nil {
				continue
			}
			with := append(l[:3:3], resource)
			send <- prometheus.MustNewConstMetric(pressureDesc, prometheus.CounterValue, psi.SomeTotal.Seconds(), with...)
			send <- prometheus.MustNewConstMetric(stalledDesc, prometheus.CounterValue, psi.FullTotal.Seconds(), with...)
		}
	}
}

// collectShims sends the metrics of the shims. Those at the addresses that are silent have not answered for their
// counters.
func collectShims(s *node.Snapshot, silent map[string]bool, send chan<- prometheus.Metric) {
	for l, p := range shims(s) {
		up := truth(p.Shim.Error == "" && !silent[p.Shim.Address])
		send <- prometheus.MustNewConstMetric(shimUpDesc, prometheus.GaugeValue, up, l[:]...)
		if p.Shim.RSS != 0 { // else its process could not be read
			send <- prometheus.MustNewConstMetric(shimCPUDesc, prometheus.CounterValue, p.Shim.CPU.Seconds(), l[:]...)
			send <- prometheus.MustNewConstMetric(shimRSSDesc, prometheus.GaugeValue, float64(p.Shim.RSS), l[:]...)
		}
	}
}

// shims returns the pods with a shim by their labels. Of several of one name, as when a kubelet has made a pod again,
// it takes one whose shim answers.
func shims(s *node.Snapshot) map[[2]string]*node.Pod {
	chosen := map[[2]string]*node.Pod{}
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.Shim.Pid == 0 && p.Shim.Error == "" { // none runs
			continue
		}
		l := [2]string{p.Namespace, p.Name}
		if other := chosen[l]; other == nil || other.Shim.Error != "" && p.Shim.Error == "" {
			chosen[l] = p
		}
	}
	return chosen
}
