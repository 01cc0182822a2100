// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"encoding/binary"
	"io"
	"os/exec"
	"path/filepath"
	"testing"

	"sandbox.internal/shim/pkg/internal/testx"
)

// FuzzAnswer looks for the answer in the file shim.json, in C, as the delete command does before Go begins.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{"\x00", "/run/s\x00\x08\x07", "", "x", "\x00\x00"} {
		f.Add([]byte(text))
	}
	f.Add(make([]byte, 511))
	f.Add(make([]byte, 512))
	in, out := answerProgram(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		const room = 512
		text = text[:min(len(text), room)] // as much as is read
		question := append(binary.NativeEndian.AppendUint64(nil, uint64(len(text))), text...)
		if _, err := in.Write(question); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 8)
		if _, err := io.ReadFull(out, answer); err != nil {
			t.Fatalf("the program has ended: %v", err)
		}
		want := bytes.IndexByte(text, 0) + 1
		if want == 0 || len(text) == room {
			want = -1
		}
		if got := int64(binary.NativeEndian.Uint64(answer)); got != int64(want) {
			t.Errorf("the answer in %q is at %d, want %d", text, got, want)
		}
	})
}

// answerProgram runs the C code with the sanitizers of the compiler, which end it at the first wrong access.
func answerProgram(f *testing.F) (in io.Writer, out io.Reader) {
	f.Helper()
	program := filepath.Join(f.TempDir(), "answer")
	cc := exec.CommandContext(f.Context(), "cc", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover",
		"testdata/answer.c", "-o", program)
	if text, err := cc.CombinedOutput(); err != nil {
		f.Skipf("CANNOT RUN HERE: %s: %v\n%s", cc, err, text)
	}
	cmd := exec.CommandContext(f.Context(), program)
	stdin, err := cmd.StdinPipe()
	testx.Must(f, err)
	stdout, err := cmd.StdoutPipe()
	testx.Must(f, err)
	cmd.Stderr = f.Output()
	testx.Must(f, cmd.Start())
	f.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() }) // a wrong access has failed the test
	return stdin, stdout
}
