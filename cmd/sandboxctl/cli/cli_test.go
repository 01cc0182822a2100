// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// tool is a program with the global flags and a command that needs an id.
func tool() *cobra.Command {
	root := &cobra.Command{Use: "tool", SilenceErrors: true, SilenceUsage: true}
	new(Options).Bind(root)
	root.AddCommand(&cobra.Command{Use: "show ID", Args: OneID, RunE: func(*cobra.Command, []string) error { return nil }})
	root.SetErr(io.Discard)
	return root
}

func TestOptions_SayWhatIsWrong(t *testing.T) {
	for args, want := range map[string]string{
		"show c":                               "",
		"show":                                 "tool show: the id of a container or a sandbox is missing, or the beginning of one; tool ps shows them",
		"show a b":                             `takes one id, and not 2: ["a" "b"]`,
		"show c -n k8s.io":                     "",
		"show c -n a_b-c.d":                    "",
		"show c --namespace ../x":              `--namespace "../x": must be letters and digits, with a single '.', '_' or '-' between them, at most 76 in all`,
		"show c --namespace a..b":              `--namespace "a..b": must be`,
		"show c --namespace .":                 `--namespace ".": must be`,
		"show c --namespace a/b":               `--namespace "a/b": must be`,
		"show c -n=" + strings.Repeat("a", 77): "at most 76 in all",
		"show c -n=" + strings.Repeat("a", 76): "",
		"show c --address x":                   `--address "x": must be an absolute path`,
		"show c --timeout 0s":                  "--timeout 0s: must be more than 0",
		"show c -o xml":                        `--output "xml": must be table or json`,
	} {
		root := tool()
		root.SetArgs(strings.Split(args, " "))
		err := root.Execute()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string][2]string{
		"ready: 3 of 4 äöü": {"ready: 3 of 4 äöü", "ready: 3 of 4 äöü"},
		"\x1b[2J\rx\n":      {"\ufffd[2J\ufffdx\ufffd", "\ufffd[2J\ufffdx\n"},
		"a\tb":              {"a\ufffdb", "a\tb"},
		"\u202etxt":         {"\ufffdtxt", "\ufffdtxt"},
		"\xff":              {"\ufffd", "\ufffd"},
	} {
		if got := [2]string{Printable(text), PrintableText(text)}; got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
}

func TestWriteJSON_HasNothingForATerminal(t *testing.T) {
	const text = "a\u009b31m\u202e\x7f\x1b[2Jäöü<\U0001F600\U000E0001"
	var out bytes.Buffer
	if err := WriteJSON(&out, map[string]string{"status": text}); err != nil {
		t.Fatal(err)
	}
	if PrintableText(out.String()) != out.String() {
		t.Errorf("printed %q", &out)
	}
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["status"] != text {
		t.Errorf("%q is read as %q, %v", &out, got, err)
	}
}
