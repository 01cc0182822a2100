// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"encoding/binary"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/user"
)

// FuzzPasswd reads a file that a container writes, in C and in a process that has the rights of the exec that it is
// for. It finds what libcontainer finds, whatever parts read(2) gives.
func FuzzPasswd(f *testing.F) {
	f.Add(uint16(1000), uint8(3), []byte("root:x:0:0:root:/root:/bin/sh\nu:x:1000:1000::/home/u:/bin/sh\n"))
	f.Add(uint16(0), uint8(200), []byte("\n \t a:b: 0\nroot::+0:::/r"))
	f.Add(uint16(7), uint8(1), []byte("::7:::::::\n::-7\n::99999999999999999999:::/x\n::7:::/late"))
	f.Add(uint16(5), uint8(9), []byte("a:b:5:::/home\x00/x:\r\n"))
	in, out := passwdProgram(f)
	f.Fuzz(func(t *testing.T, uid uint16, part uint8, file []byte) {
		const short = 60000 // bufio.Scanner ends at a longer line
		file = file[:min(len(file), short)]
		for i, c := range file {
			if c >= 0x80 {
				file[i] = 'x' // libcontainer trims blanks of Unicode too
			}
		}
		question := binary.NativeEndian.AppendUint64(nil, uint64(uid))
		question = binary.NativeEndian.AppendUint64(question, uint64(part)+1)
		question = binary.NativeEndian.AppendUint64(question, uint64(len(file)))
		if _, err := in.Write(append(question, file...)); err != nil {
			t.Fatal(err)
		}
		size := make([]byte, 8)
		if _, err := io.ReadFull(out, size); err != nil {
			t.Fatalf("the program has ended: %v", err)
		}
		got := make([]byte, binary.NativeEndian.Uint64(size))
		if _, err := io.ReadFull(out, got); err != nil {
			t.Fatal(err)
		}
		want := "/"
		found, err := user.ParsePasswdFilter(bytes.NewReader(file), func(u user.User) bool { return u.Uid == int(uid) })
		if err == nil && len(found) > 0 {
			want, _, _ = strings.Cut(found[0].Home, "\x00") // where the kernel ends a string of the environment
		}
		if string(got) != "HOME="+want {
			t.Errorf("home of %d in %q, read in parts of %d: %q, want %q", uid, file, int(part)+1, got, want)
		}
	})
}

// passwdProgram runs the C code with the sanitizers of the compiler, which end it at the first wrong access.
func passwdProgram(f *testing.F) (in io.Writer, out io.Reader) {
	f.Helper()
	program := filepath.Join(f.TempDir(), "passwd")
	cc := exec.CommandContext(f.Context(), "cc", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover",
		"testdata/passwd.c", "-o", program)
	if text, err := cc.CombinedOutput(); err != nil {
		f.Skipf("CANNOT RUN HERE: %s: %v\n%s", cc, err, text)
	}
	cmd := exec.CommandContext(f.Context(), program)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		f.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	cmd.Stderr = f.Output()
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() }) // a wrong access has failed the test
	return stdin, stdout
}
