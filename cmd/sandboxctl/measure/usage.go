// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package measure reads from the kernel what the machine, cgroups and processes use. It asks nobody else, so that what
// is measured does not pay for it.
package measure

import "time"

// Host is the machine.
type Host struct {
	CPUs     int           `json:"cpus"`      // online
	CPU      time.Duration `json:"cpu_ns"`    // used by all, since the machine was started
	Memory   uint64        `json:"memory"`    // bytes in use: all but what is available
	Total    uint64        `json:"total"`     // bytes of memory
	Pressure Pressure      `json:"pressure"`  // of the whole machine
	Cgroup   string        `json:"cgroup"`    // v1, hybrid or v2
	BootTime time.Time     `json:"boot_time"` // from /proc/stat
}

// Usage is read from the cgroup of a container. A counter begins with the cgroup.
type Usage struct {
	// Cgroup is its directory, on v1 that of one controller. Empty: there is none, and nothing else is known.
	Cgroup string `json:"cgroup,omitempty"`

	CPU       time.Duration `json:"cpu_ns"`
	User      time.Duration `json:"cpu_user_ns"`
	System    time.Duration `json:"cpu_system_ns"`
	CPULimit  float64       `json:"cpu_limit,omitempty"` // in CPUs; 0: none
	Periods   uint64        `json:"periods"`             // of the limit, in which the container ran
	Throttled uint64        `json:"throttled_periods"`   // of these, in which it had to wait
	Waited    time.Duration `json:"throttled_ns"`

	Memory      uint64 `json:"memory"`                 // bytes, less what the kernel drops immediately (inactive files)
	MemoryLimit uint64 `json:"memory_limit,omitempty"` // bytes; 0: none
	OOMKills    uint64 `json:"oom_kills"`

	Pids      uint64 `json:"pids"` // processes and threads
	PidsLimit uint64 `json:"pids_limit,omitempty"`

	CPUs string `json:"cpus,omitempty"` // effective, as a list: 0-3,6
	Mems string `json:"mems,omitempty"`

	Pressure Pressure `json:"pressure"`
	Unknown  Unknown  `json:"unknown,omitzero"`
}

// Unknown is what the kernel does not report of a cgroup, whose numbers are 0: the controller is absent, or its file
// could not be read.
type Unknown struct {
	CPU        bool `json:"cpu,omitempty"`
	Times      bool `json:"cpu_times,omitempty"`  // user and system
	Throttling bool `json:"throttling,omitempty"` // periods
	Memory     bool `json:"memory,omitempty"`
	OOMKills   bool `json:"oom_kills,omitempty"`
	Pids       bool `json:"pids,omitempty"`
}

// Pressure is how long tasks waited for lack of something. nil: the kernel does not say, as on cgroup v1.
type Pressure struct {
	CPU    *PSI `json:"cpu,omitempty"`
	Memory *PSI `json:"memory,omitempty"`
	IO     *PSI `json:"io,omitempty"`
}

// PSI is one file of pressure stall information (the kernel's Documentation/accounting/psi.rst).
type PSI struct {
	Some10    float64       `json:"some_avg10"` // percent of the last ten seconds in which some task waited
	Full10    float64       `json:"full_avg10"` // all tasks
	SomeTotal time.Duration `json:"some_total_ns"`
	FullTotal time.Duration `json:"full_total_ns"`
}
