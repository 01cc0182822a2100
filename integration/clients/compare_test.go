// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clientCase is what somebody does with a client.
type clientCase struct {
	name   string
	script string
	want   string         // the script's output
	run    func(*session) // is done before the script
	mask   *regexp.Regexp // lines that may differ, because of reason
	reason string
	runc   string // why the case fails with the runc shim
	ours   string // why it fails with ours
	both   string // why it fails with each
}

// runtimes are what scripts find in $RUNTIME: Docker's names of the runc shim and of ours.
func runtimes() []string { return []string{"runc", "sandbox"} }

func compare(t *testing.T, d daemon, cases []clientCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var accounts []string
			var failed []error
			for _, runtime := range runtimes() {
				account, err := play(t.Context(), d, c, runtime)
				if c.mask != nil {
					account = c.mask.ReplaceAllString(account, "<"+c.reason+">")
				}
				accounts, failed = append(accounts, account), append(failed, err)
			}
			c.judge(t, failed)
			if failed[0] == nil && failed[1] == nil && accounts[0] != accounts[1] {
				t.Errorf("the two differ (-runc +sandbox):\n%s", cmp.Diff(accounts[0], accounts[1]))
			}
			if t.Failed() {
				t.Log(d.logs())
			}
			seen.add(d, c)
		})
	}
}

// judge holds what failed against what the case says of failures.
func (c clientCase) judge(t *testing.T, failed []error) {
	t.Helper()
	want := []bool{c.runc+c.both != "", c.ours+c.both != ""}
	for i, runtime := range runtimes() {
		if failed[i] != nil && !want[i] {
			t.Errorf("%s: %v", runtime, failed[i])
		}
		if failed[i] == nil && want[i] {
			t.Errorf("%s: passed, and the table says that it fails: %s%s%s", runtime, c.runc, c.ours, c.both)
		}
	}
}
