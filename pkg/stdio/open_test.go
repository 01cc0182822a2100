// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

func TestOpen_RefusesAndLeavesNothing(t *testing.T) {
	dir := fifos(t, "in", "out")
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	file := filepath.Join(dir, "file")
	testx.Must(t, os.WriteFile(file, nil, 0o600))
	host := NewHost("ns", newFakeChildren(t))
	tests := []struct {
		name   string
		config Config
		class  error
		want   string
	}{
		{"an unknown scheme of stdout", Config{Stdin: in, Stdout: "gopher:///x"}, errdefs.ErrInvalidArgument, `stdout "gopher:///x": unknown scheme "gopher", want fifo, file, binary or binary-v2: invalid argument`},
		{"an unknown scheme of stderr", Config{Stdin: in, Stdout: out, Stderr: "x://y"}, errdefs.ErrInvalidArgument, `stderr "x://y": unknown scheme "x", want fifo, file, binary or binary-v2: invalid argument`},
		{"a logging binary", Config{Stdout: "binary:///bin/log?a=b"}, errdefs.ErrNotImplemented, `stdout "binary:///bin/log?a=b": scheme "binary" is not served here: not implemented`},
		{"a logging binary for stderr alone", Config{Stderr: "binary-v2:///bin/log", Host: host}, errdefs.ErrInvalidArgument, `stderr "binary-v2:///bin/log": a logging binary always takes both outputs: name it as stdout (stderr is then ignored): invalid argument`},
		{"a logging binary that does not exist", Config{Stdin: in, Stdout: "binary:///nonexistent", Host: host}, errdefs.ErrFailedPrecondition, `stdout "binary:///nonexistent": start logging binary: fork/exec /nonexistent: no such file or directory: failed precondition`},
		{"a logging binary that cannot be run", Config{Stdout: "binary-v2://" + file, Host: host}, errdefs.ErrFailedPrecondition, `stdout "binary-v2://` + file + `": start logging binary: fork/exec ` + file + `: permission denied: failed precondition`},
		{"a logging binary by a relative path", Config{Stdout: "binary://logger?a=b", Host: host}, errdefs.ErrInvalidArgument, `stdout "binary://logger?a=b": path is not absolute: invalid argument`},
		{"arguments of a logging binary that are none", Config{Stdout: "binary:///bin/log?a;b", Host: host}, errdefs.ErrInvalidArgument, `stdout "binary:///bin/log?a;b": invalid semicolon separator in query: invalid argument`},
		{"streaming", Config{Stdin: "ttrpc+unix:///s?streaming_id=a-stdin"}, errdefs.ErrInvalidArgument, `stdin "ttrpc+unix:///s?streaming_id=a-stdin": unknown scheme "ttrpc+unix", want fifo, file, binary or binary-v2: invalid argument`},
		{"stdin from a file", Config{Stdin: "file:///etc/passwd"}, errdefs.ErrInvalidArgument, `stdin "file:///etc/passwd": scheme "file" is for output, want fifo: invalid argument`},
		{"a relative path", Config{Stdout: "out"}, errdefs.ErrInvalidArgument, `stdout "out": path is not absolute: invalid argument`},
		{"a URI that is none", Config{Stdout: "file:///%zz"}, errdefs.ErrInvalidArgument, `stdout "file:///%zz": parse "file:///%zz": invalid URL escape "%zz": invalid argument`},
		{"a fifo that does not exist", Config{Stdin: in, Stdout: out, Stderr: "/nonexistent"}, errdefs.ErrFailedPrecondition, `stderr "/nonexistent": open /nonexistent: no such file or directory: failed precondition`},
		{"stdin that is no fifo", Config{Stdout: out, Stdin: file}, errdefs.ErrFailedPrecondition, `stdin "` + file + `": not a fifo: failed precondition`},
		{"a log file below a file", Config{Stdin: in, Stdout: "file://" + file + "/log"}, errdefs.ErrFailedPrecondition, `stdout "file://` + file + `/log": mkdir ` + file + `: not a directory: failed precondition`},
		{"a log file that is a fifo without reader", Config{Stdin: in, Stdout: "file://" + out}, errdefs.ErrFailedPrecondition, `stdout "file://` + out + `": open ` + out + `: no such device or address: failed precondition`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			s, err := Open(t.Context(), tt.config, idmap.Owner{})
			if s != nil || !errors.Is(err, tt.class) || err.Error() != tt.want {
				t.Errorf("Open(%+v)\n got %v, %v\nwant %v of class %v", tt.config, s, err, tt.want, tt.class)
			}
		})
	}
}

func TestOpen_AfterItsContextEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := Open(ctx, Config{}, idmap.Owner{}); s != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("Open() = %v, %v, want context.Canceled", s, err)
	}
}

func TestOpen_FileIsMadeAndAppendedTo(t *testing.T) {
	checkLeaks(t)
	old := unix.Umask(0o022)
	defer unix.Umask(old)
	dir := filepath.Join(t.TempDir(), "made")
	path := filepath.Join(dir, "log")
	for range 2 {
		r := &env{t, mustOpen(t, Config{Stdout: "file://" + path, Stderr: "file://" + path}), ""}
		if err := r.run("sh", "-c", "echo out; echo err >&2").Wait(); err != nil {
			t.Fatal(err)
		}
		testx.Must(t, r.Drain(t.Context()))
	}
	b, err := os.ReadFile(path)
	if err != nil || len(b) != 2*len("out\nerr\n") {
		t.Errorf("log holds %q, %v, want two lines of each stream", b, err)
	}
	for p, want := range map[string]os.FileMode{dir: 0o755, path: 0o644} {
		if st, err := os.Stat(p); err != nil || st.Mode().Perm() != want {
			t.Errorf("mode of %s: %v, %v, want %v", p, st.Mode().Perm(), err, want)
		}
	}
}

func TestOpen_PlainPathOfAFileIsAppendedTo(t *testing.T) {
	checkLeaks(t)
	path := filepath.Join(t.TempDir(), "100%?log")
	testx.Must(t, os.WriteFile(path, []byte("before\n"), 0o600))
	r := &env{t, mustOpen(t, Config{Stdout: path}), ""}
	testx.Must(t, r.run("echo", "after").Wait())
	testx.Must(t, r.Drain(t.Context()))
	if b, err := os.ReadFile(path); err != nil || string(b) != "before\nafter\n" {
		t.Errorf("file holds %q, %v", b, err)
	}
}

func TestOpen_UnnamedStreamsAreNull(t *testing.T) {
	checkLeaks(t)
	r := &env{t, mustOpen(t, Config{}), ""}
	stdin, stdout, stderr := r.Child()
	for i, f := range []*os.File{stdin, stdout, stderr} {
		if f == nil || f.Name() != os.DevNull {
			t.Errorf("descriptor %d is %v, want %s", i, f, os.DevNull)
		}
	}
	if r.ConsoleSocket() != nil {
		t.Error("a console socket without terminal")
	}
	if err := r.run("sh", "-c", "cat; echo out; echo err >&2").Wait(); err != nil {
		t.Error(err)
	}
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOpen_PipesBelongToTheOwner(t *testing.T) {
	checkLeaks(t)
	dir := fifos(t, "stdin", "stdout")
	var before, after unix.Stat_t
	testx.Must(t, unix.Stat(os.DevNull, &before))
	s, err := Open(t.Context(), Config{Stdin: dir + "/stdin", Stdout: dir + "/stdout"}, idmap.Owner{UID: 1234, GID: 5678})
	if err != nil {
		t.Fatal(err) // needs root
	}
	defer s.Close()
	stdin, stdout, _ := s.Child()
	for _, f := range []*os.File{stdin, stdout} {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid != 1234 || st.Gid != 5678 {
			t.Errorf("%s belongs to %d:%d, %v, want 1234:5678", f.Name(), st.Uid, st.Gid, err)
		}
	}
	if err := unix.Stat(os.DevNull, &after); err != nil || after.Uid != before.Uid || after.Gid != before.Gid {
		t.Errorf("%s belongs to %d:%d, %v, want %d:%d", os.DevNull, after.Uid, after.Gid, err, before.Uid, before.Gid)
	}
}
