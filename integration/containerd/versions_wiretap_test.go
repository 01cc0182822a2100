// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"google.golang.org/protobuf/proto"
)

// wiretap is a program in the shim's place that copies what each start reads and writes to files, and becomes the shim.
type wiretap struct {
	shim string // path of that program
}

func newWiretap(t *testing.T, shim string) wiretap {
	t.Helper()
	w := wiretap{shim: filepath.Join(t.TempDir(), filepath.Base(shim))}
	script := fmt.Sprintf(`#!/bin/bash
if [ "${!#}" = start ]; then
	exec %q "$@" < <(tee "$0.$$.in") > >(tee "$0.$$.out")
fi
exec %[1]q "$@"
`, shim)
	if err := os.WriteFile(w.shim, []byte(script), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return w
}

// answer is what a start command returned to containerd.
type answer struct {
	form    string
	version int32 // of the Task API that containerd uses after it
	address string
}

// answers reads what has been heard so far.
func (w wiretap) answers(t *testing.T) []answer {
	t.Helper()
	names, err := filepath.Glob(w.shim + ".*.out")
	if err != nil || len(names) == 0 {
		t.Fatalf("answers of the shim: %q, %v, want one at least", names, err)
	}
	var all []answer
	for _, out := range names {
		answered, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		asked, err := os.ReadFile(out[:len(out)-len("out")] + "in")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, readAnswer(t, asked, answered))
	}
	return all
}

// readAnswer reads an answer as a containerd that asked so does.
func readAnswer(t *testing.T, asked, answered []byte) answer {
	t.Helper()
	// Options, which earlier releases send, have no containerd version.
	var params bootstrap.BootstrapParams
	if err := proto.Unmarshal(asked, &params); err == nil && params.GetContainerdVersion() != "" {
		var result bootstrap.BootstrapResult
		if err := proto.Unmarshal(answered, &result); err != nil {
			t.Fatalf("answer %q: %v", answered, err)
		}
		return answer{"protobuf", result.GetVersion(), result.GetAddress()}
	}
	if !bytes.HasPrefix(answered, []byte("{")) {
		return answer{"plain text", 2, string(answered)}
	}
	var result struct {
		Version int32
		Address string
	}
	if err := json.Unmarshal(answered, &result); err != nil {
		t.Fatalf("answer %q: %v", answered, err)
	}
	return answer{"JSON", result.Version, result.Address}
}

// absent returns nil when there is no such file.
func absent(name string) error {
	_, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("%s is there: %w", name, err)
}
