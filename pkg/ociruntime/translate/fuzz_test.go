// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"slices"
	"strings"
	"testing"
)

func FuzzEnvironment(f *testing.F) {
	f.Add("A=1\x00HOME=\x00A=2")
	f.Add("=x")
	f.Fuzz(func(t *testing.T, text string) {
		env := strings.Split(text, "\x00")
		out, noHome, err := environment(env)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, setting := range out {
			name, value, _ := strings.Cut(setting, "=")
			if seen[name] || name == "" || name == "HOME" && (value == "" || noHome) || !slices.Contains(env, setting) {
				t.Errorf("environment(%q) = %q, %t", env, out, noHome)
			}
			seen[name] = true
		}
		if again, noHomeAgain, err := environment(out); err != nil || noHomeAgain != noHome || !slices.Equal(again, out) {
			t.Errorf("environment(%q) = %q, and of that %q, %v", env, out, again, err)
		}
	})
}
