// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// A number that the kernel does not tell is none, also in the sum of a pod.
func TestRows_WhatIsUnknownIsADash(t *testing.T) {
	unknown := measure.Unknown{CPU: true, Throttling: true, Memory: true, OOMKills: true, Pids: true}
	s := &node.Snapshot{Pods: []node.Pod{{ID: "p", Sandbox: true, Containers: []node.Container{
		{ID: "a", Usage: measure.Usage{Unknown: unknown}}, {ID: "b"},
	}}}}
	g := groups(s)[0]
	for i, want := range []string{"- - - - -", "- - - - -", "0.0 0 0 0 0.0"} { // the pod, and its containers
		var texts []string
		for _, c := range columns {
			if slices.Contains([]string{"CPU%", "MEM", "PIDS", "OOM", "THR%"}, c.title) {
				texts = append(texts, c.of(&g[i]))
			}
		}
		if got := strings.Join(texts, " "); got != want {
			t.Errorf("row %d = %q, want %q", i, got, want)
		}
	}
}

// steps is a source whose snapshots are of one second after the other.
type steps struct {
	fake
	seconds int
}

func (s *steps) Snapshot(ctx context.Context) (*node.Snapshot, error) {
	s.seconds++
	s.snapshot = snapshot(s.seconds)
	return s.fake.Snapshot(ctx)
}

func TestOnce_HasRatesOfTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steps{}
		var out bytes.Buffer
		if err := writeOnce(t.Context(), &out, s, time.Second, true); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Node struct{ CPUs int }
			Pods []struct {
				Name       string
				Shim       struct{ Pid int }
				Containers []struct {
					Name  string
					Usage struct{ Memory uint64 }
					Rates struct{ CPU, Throttled, Execs float64 }
				}
			}
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		web := got.Pods[1]
		if got.Node.CPUs != 4 || web.Name != "shop/web-0" || web.Shim.Pid != 1001 || len(web.Containers) != 2 {
			t.Fatalf("got %+v", got)
		}
		if c := web.Containers[0]; c.Name != "nginx" || c.Usage.Memory != 200<<20 || c.Rates.CPU != 0.8 || c.Rates.Throttled != 0.4 || c.Rates.Execs != 3 {
			t.Errorf("container %+v, want its usage and rates", c)
		}
	})
}

var _ Source = (*node.Node)(nil)
