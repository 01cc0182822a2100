// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// What the documentation tells people to type is understood, and each command is in it.
func TestDocs_NameCommandsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/sandboxctl.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`(?m)^(?:# |    )sandboxctl (.*)$`)
	var seen []string
	for _, m := range example.FindAllStringSubmatch(string(text), -1) {
		line, _, _ := strings.Cut(m[1], " | ")
		cmd, args, err := root().Find(strings.Fields(line))
		if err != nil || cmd.Name() == "sandboxctl" {
			t.Errorf("sandboxctl %s: %v", line, err)
			continue
		}
		if err := cmd.ParseFlags(args); err != nil {
			t.Errorf("sandboxctl %s: %v", line, err)
		}
		if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
			t.Errorf("sandboxctl %s: %v", line, err)
		}
		seen = append(seen, cmd.Name())
	}
	for _, cmd := range root().Commands() {
		if !slices.Contains(seen, cmd.Name()) {
			t.Errorf("docs/sandboxctl.md has no example of %s", cmd.Name())
		}
	}
	root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(string(text), "`--"+f.Name+"`") {
			t.Errorf("docs/sandboxctl.md does not name --%s", f.Name)
		}
	})
}

// Help is there instead of manual pages.
func TestHelp_SaysWhatACommandDoes(t *testing.T) {
	for _, cmd := range root().Commands() {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s has no short or long help, or no example", cmd.Name())
		}
		const width = 92
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if len([]rune(line)) > width {
				t.Errorf("help of %s: %q is longer than %d", cmd.Name(), line, width)
			}
		}
	}
}
