// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Mix says how many of a thousand steps of a round are what, and how long its bursts are.
type Mix struct {
	Burst    int // steps on a container that runs that are bursts of execs
	Batch    int // steps that are batches of containers from beginning to end
	Shared   int // of a thousand batches: all containers are in the pod of the bystanders
	Length   int // execs of a burst and containers of a batch, at most
	Together int // steps that have a companion
	Illegal  int // steps that may be anything in any state
	Process  int // faults: a process of a container is killed or stopped
	Stop     int // faults: a shim or containerd is stopped for a while
	Shim     int // faults: a shim is killed
	Daemon   int // faults: containerd is killed, or restarted
	Pod      int // steps that are pods through CRI
	Weather  int // faults: /run is full or read-only, the shim has no more memory or processes
	Hostile  int // of a thousand programs
	Storm    int // steps on a container that runs whose execs all end while containerd is away
	Source   int // steps that change the CPUs that containers follow
	Replace  int // steps that replace the shim's program
}

// DefaultMix has about ten execs for each container, and one shim in fifty killed.
func DefaultMix() Mix {
	return Mix{
		Burst: 200, Batch: 2, Shared: 500, Length: 20, Together: 60, Illegal: 60, Process: 20, Stop: 10, Shim: 8, Daemon: 2,
		Pod: 3, Weather: 15, Hostile: 60, Storm: 3, Source: 10, Replace: 2,
	}
}

// String is the mix as Set reads it.
func (m *Mix) String() string {
	var parts []string
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		parts = append(parts, fmt.Sprintf("%s=%d", strings.ToLower(v.Type().Field(i).Name), v.Field(i).Int()))
	}
	return strings.Join(parts, ",")
}

// Set changes the parts that text names: "shim=20,pod=0".
func (m *Mix) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return fmt.Errorf("mix %q: want NAME=NUMBER", part)
		}
		f := reflect.ValueOf(m).Elem().FieldByNameFunc(func(field string) bool { return strings.ToLower(field) == name })
		if !f.IsValid() {
			return fmt.Errorf("mix %q: the names are those in %s", part, m)
		}
		f.SetInt(int64(n))
	}
	return nil
}
