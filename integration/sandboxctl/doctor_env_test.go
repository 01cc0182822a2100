// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// report is what sandboxctl prints; the fields that tests look at.
type report struct {
	Status string
	Checks []struct {
		Check, Status string
		Findings      []struct{ Status, Text, Fix string }
	}
	Leftovers []struct {
		Check, Path, Text, Caution, Fix string
		Pid                             int
	}
}

// doctor is "sandboxctl doctor" for the containerd of the test.
func (e *env) doctor(args ...string) []string {
	return slices.Concat([]string{binary, "--address", e.Address, "--state", e.State, "doctor"}, args)
}

// examine runs sandboxctl, which must end with a status; -1 is any.
func (e *env) examine(status int, args ...string) report {
	e.Helper()
	return e.examineBy(e.doctor(append([]string{"-o", "json"}, args...)...), status)
}

func (e *env) examineBy(argv []string, status int) report {
	e.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	exit, _ := errors.AsType[*exec.ExitError](err)
	if err != nil && exit == nil || status >= 0 && cmd.ProcessState.ExitCode() != status {
		e.Fatalf("%q: %v, want status %d\n%s%s", argv, err, status, out, stderr.String())
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		e.Fatalf("%q printed %q: %v", argv, out, err)
	}
	return r
}

// want fails the test unless a check has a status, and a finding with a text.
func (e *env) want(r report, check, status, text string) {
	e.Helper()
	for _, c := range r.Checks {
		if c.Check != check {
			continue
		}
		for _, f := range c.Findings {
			if c.Status == status && strings.Contains(f.Text, text) {
				return
			}
		}
		e.Errorf("%s = %+v, want %s and a finding with %q", check, c, status, text)
		return
	}
	e.Errorf("no check %s in %+v", check, r)
}

func (e *env) wantNothingLeft(r report) {
	e.Helper()
	if len(r.Leftovers) > 0 {
		e.Errorf("leftovers: %+v, want none", r.Leftovers)
	}
	for _, check := range []string{"leftover-bundles", "leftover-sockets", "leftover-mounts", "leftover-states", "leftover-shims"} {
		e.want(r, check, "ok", "none")
	}
}
