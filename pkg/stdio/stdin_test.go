// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestStdin_OutlivesAClientAndEndsAtCloseStdin(t *testing.T) {
	r := newEnv(t, false, "stdin", "stdout")
	out := r.client("stdout")
	r.run("cat")
	for _, word := range []string{"one ", "two ", "three"} {
		in := r.client("stdin")
		write(t, in, word)
		in.Close()
		wantRead(t, out, word)
	}
	for range 2 { // idempotent
		testx.Must(t, r.CloseStdin())
	}
	wantRest(t, out, "")
}

func TestCloseStdin_DeliversWhatIsBuffered(t *testing.T) {
	tests := []struct {
		name  string
		close func(t *testing.T, r *env, closeClient func() error)
	}{
		{"the client closes first", func(t *testing.T, r *env, closeClient func() error) {
			t.Helper()
			testx.Must(t, errors.Join(closeClient(), r.CloseStdin()))
		}},
		{"the client closes last", func(t *testing.T, r *env, closeClient func() error) {
			t.Helper()
			testx.Must(t, errors.Join(r.CloseStdin(), closeClient()))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newEnv(t, false, "stdin")
			process := r.processStdin()
			r.started()
			in := r.client("stdin")
			text := pattern(120_000) // a pipe and a part of another
			write(t, in, text)
			tt.close(t, r, in.Close) // before the process reads
			wantRest(t, process, text)
		})
	}
}

// A client that has written its input asks for the task: nerdctl loses the end of its input if there is none.
func TestStdin_LetsNoClientWriteBeforeOpenStdin(t *testing.T) {
	r := newEnv(t, false, "stdin")
	testx.Must(t, r.Started())
	if fd, err := openFD(filepath.Join(r.dir, "stdin"), unix.O_WRONLY|unix.O_NONBLOCK, 0); !errors.Is(err, unix.ENXIO) {
		t.Fatalf("a client opens stdin before OpenStdin: descriptor %d, %v, want ENXIO", fd, err)
	}
	testx.Must(t, r.OpenStdin())
	r.client("stdin").Close()
}

func TestCloseStdin_BeforeOpenStdinIsKept(t *testing.T) {
	r := newEnv(t, false, "stdin")
	process := r.processStdin()
	testx.Must(t, r.CloseStdin())
	r.started()
	wantRest(t, process, "")
}

func TestStdin_EndsWhenTheProcessClosesIt(t *testing.T) {
	r := newEnv(t, false, "stdin", "stdout")
	out := r.client("stdout")
	r.run("sh", "-c", "read line; exec <&-; echo closed; exec sleep 1000")
	in := r.client("stdin")
	write(t, in, "line\n")
	wantRead(t, out, "closed\n")
	testx.Eventually(t, "the client learns that nobody reads", func() bool {
		_, err := in.WriteString("x")
		return errors.Is(err, unix.EPIPE)
	})
	if err := r.CloseStdin(); err != nil {
		t.Error(err)
	}
}
