// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/campaign"
)

func TestCourse_GoesOnWhereItWasEnded(t *testing.T) {
	s := settings{
		seed: 7, workers: 2, runtime: "a.b.c", mix: campaign.DefaultMix(), state: filepath.Join(t.TempDir(), "dir", "state"),
	}
	c, err := load(s)
	if err != nil {
		t.Fatal(err)
	}
	report := campaign.Report{Worker: 1, Round: 4, Totals: campaign.Totals{Rounds: 1, Containers: 6}}
	if err := c.take(told{worker: 1, report: &report}); err != nil {
		t.Fatal(err)
	}
	again, err := load(s)
	if err != nil {
		t.Fatal(err)
	}
	if again.Next[0] != 0 || again.Next[1] != 5 || again.Totals.Containers != 6 {
		t.Errorf("load = %+v, want rounds 0 and 5, 6 containers", again)
	}
	if text := again.begin(); !strings.Contains(text, "after 1 rounds") {
		t.Errorf("begin = %q, want that it goes on", text)
	}
	s.seed = 8
	if _, err := load(s); err == nil || !strings.Contains(err.Error(), "seed 7") {
		t.Errorf("load with another seed = %v, want an error that names the first", err)
	}
}

func TestFailure_StaysThereWhileFewerStepsAreLookedFor(t *testing.T) {
	s := settings{workers: 1, shrink: time.Minute, failures: t.TempDir()}
	c, err := load(s)
	if err != nil {
		t.Fatal(err)
	}
	report := campaign.Report{Failure: &campaign.Failure{Log: "some", Steps: []campaign.Step{{Op: campaign.Pause}}}}
	if err := c.take(told{report: &report}); err == nil || c.shrinking != 1 {
		t.Errorf("take of a failure = %v, %d look for fewer steps, want an error and 1", err, c.shrinking)
	}
	if err := c.take(told{}); err != nil || c.shrinking != 0 {
		t.Errorf("take of the worker's end = %v, %d look for fewer steps, want nil and none", err, c.shrinking)
	}
	files, err := filepath.Glob(filepath.Join(s.failures, "campaign-0-0-0.*"))
	if err != nil || len(files) != 2 {
		t.Errorf("files = %q, %v, want the failure and its log", files, err)
	}
}
