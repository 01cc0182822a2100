// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/hungfs"
	"sandbox.internal/shim/pkg/internal/testx"
)

// body is what the tests hand over.
type body struct {
	Out   FD
	Pid   int
	Fails string // what the successor does: "returns", "refuses", "hangs"; else it goes on
}

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "program" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	if err := program(os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// program is one that executes itself, once, and tells what happens on a descriptor that it hands over.
func program(action string) error {
	var b body
	switch action {
	case ActionCheck:
		_, err := Load(os.Stdin, &b)
		if b.Fails == "refuses" {
			err = errors.New("no such thing")
		}
		if b.Fails == "hangs" {
			_ = unix.Pause() // until it is killed
		}
		return err
	case ActionTake:
		l, err := Load(os.Stdin, &b)
		if err != nil {
			return Return(l, os.Stdin, []string{"program"}, err)
		}
		why := Failure()
		if b.Fails == "returns" && why == "" {
			return Return(l, os.Stdin, []string{"program"}, errors.New("it is bad"))
		}
		out, err := l.File(b.Out, "out")
		if err = errors.Join(err, l.Unused()); err != nil {
			return err
		}
		if err := l.Commit(); err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "the same process: %t; failure %q", os.Getpid() == b.Pid, why)
		return err
	}
	own, err := Own()
	if err != nil {
		return err
	}
	saver := &Saver{}
	s, err := saver.State("0.0.1", own, body{Out: saver.Keep(os.NewFile(3, "out")), Pid: os.Getpid(), Fails: action})
	if err != nil {
		return err
	}
	path, err := OwnPath()
	if err != nil {
		return err
	}
	p, err := Open(path, []string{"program"})
	if err != nil {
		return err
	}
	wait, err := p.Start(s, noOthers{})
	if err != nil {
		return err
	}
	patience := time.Minute
	if action == "hangs" {
		patience = 100 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := wait(ctx); err != nil {
		return err
	}
	return p.Exec(s)
}

type noOthers struct{}

func (noOthers) Suspend() func()   { return func() {} }
func (noOthers) Register(int) bool { return true }
func (noOthers) Unregister(int)    {}

func TestExec_GoesOverAndBack(t *testing.T) {
	for _, tt := range []struct{ action, out, stderr string }{
		{"goes on", `the same process: true; failure ""`, ""},
		{"returns", `the same process: true; failure "it is bad"`, ""},
		{"refuses", "", "refuses: exit status 1: no such thing"},
		{"hangs", "", "no answer: context deadline exceeded"},
	} {
		t.Run(tt.action, func(t *testing.T) {
			path, err := os.Executable()
			testx.Must(t, err)
			out, theirs, err := os.Pipe()
			testx.Must(t, err)
			cmd := exec.CommandContext(t.Context(), path, "program", tt.action)
			var stderr strings.Builder
			cmd.Stderr, cmd.ExtraFiles = &stderr, []*os.File{theirs}
			err = cmd.Run()
			testx.Must(t, theirs.Close())
			text := make([]byte, 1000)
			n, _ := out.Read(text) // the end is no error of the test
			if string(text[:n]) != tt.out || !strings.Contains(stderr.String(), tt.stderr) || (err != nil) != (tt.stderr != "") {
				t.Errorf("%v; it said %q and %q, want %q and %q", err, text[:n], stderr.String(), tt.out, tt.stderr)
			}
		})
	}
}

func TestLoad_RefusesWhatIsNoState(t *testing.T) {
	for _, text := range []string{
		"", "{}", "null", `{"Format":1}`, `{"Format":9,"Body":{}}`, `{"Format":1,"FDs":[1],"Body":{}}`,
		`{"Format":1,"FDs":[7,7],"Body":{}}`, `{"Format":1,"Body":{"Pid":"x"}}`,
	} {
		file, err := sealed([]byte(text))
		testx.Must(t, err)
		if _, err := Load(file, &body{}); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("Load(%s) = %v, want an invalid argument", text, err)
		}
		if _, err := file.WriteAt([]byte("x"), 0); err == nil {
			t.Error("a sealed file was changed")
		}
		testx.Must(t, file.Close())
	}
}

func TestLoader_GivesEachDescriptorOnce(t *testing.T) {
	r, w, err := os.Pipe()
	testx.Must(t, err)
	defer r.Close()
	saver := &Saver{}
	b := body{Out: saver.Keep(w)}
	closed, _, err := os.Pipe()
	testx.Must(t, err)
	testx.Must(t, closed.Close())
	for _, f := range []*os.File{nil, closed} {
		if fd := saver.Keep(f); fd != 0 {
			t.Errorf("a file that is closed, or nil, is descriptor %d", fd)
		}
	}
	own, err := Own()
	testx.Must(t, err)
	defer own.Close()
	s, err := saver.State("0.0.1", own, b)
	testx.Must(t, err)
	defer s.Close()
	var got body
	l, err := Load(s.file, &got)
	testx.Must(t, err)
	if err := l.Unused(); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("Unused() = %v before anything is taken", err)
	}
	fd, err := l.Take(got.Out)
	if err != nil || fd != int(w.Fd()) {
		t.Errorf("Take = %d, %v, want %d", fd, err, w.Fd())
	}
	for _, wrong := range []FD{got.Out, 1000} {
		if _, err := l.Take(wrong); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("Take(%d) = %v, want an invalid argument", wrong, err)
		}
	}
	testx.Must(t, l.Unused())
}

func TestOpen_RefusesWhatOthersCanChange(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	for _, tt := range []struct {
		name  string
		make  func() error
		words string
	}{
		{"a directory", func() error { return os.Mkdir(path, 0o755) }, "executable file"},
		{"not executable", func() error { return os.WriteFile(path, nil, 0o644) }, "executable file"},
		{"of a group", func() error { return errors.Join(os.WriteFile(path, nil, 0o775), os.Chmod(path, 0o775)) }, "0775"},
		{"of others", func() error { return errors.Join(os.WriteFile(path, nil, 0o757), os.Chmod(path, 0o757)) }, "0757"},
		{"of nobody", func() error { return errors.Join(os.WriteFile(path, nil, 0o755), os.Chown(path, 65534, 65534)) }, "user 65534"},
	} {
		if tt.name == "of nobody" && os.Geteuid() != 0 {
			continue // only root can make it
		}
		testx.Must(t, os.RemoveAll(path))
		testx.Must(t, tt.make())
		_, err := Open(path, nil)
		if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %v, want a failed precondition with %q", tt.name, err, tt.words)
		}
	}
	testx.Must(t, os.RemoveAll(path))
	if _, err := Open(path, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open without a program = %v", err)
	}
	testx.Must(t, os.WriteFile(path, []byte("old"), 0o755))
	p, err := Open(path, nil)
	testx.Must(t, err)
	defer p.Close()
	if own, err := p.IsOwn(); own || err != nil {
		t.Errorf("IsOwn() = %t, %v", own, err)
	}
	testx.Must(t, p.unchanged())
	testx.Must(t, os.WriteFile(path+".new", []byte("new"), 0o755))
	testx.Must(t, os.Rename(path+".new", path))
	own, err := Own()
	testx.Must(t, err)
	defer own.Close()
	state, err := (&Saver{}).State("0.0.1", own, body{})
	testx.Must(t, err)
	defer state.Close()
	if err := p.Exec(state); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("Exec of a program that was replaced: %v", err)
	}
	if !slices.Equal(p.argv(ActionTake), []string{"program", ActionTake}) {
		t.Errorf("argv = %v", p.argv(ActionTake))
	}
}

// A thread that waits for the exec of its child (vfork(2)) cannot be interrupted, and the program of that one is on a
// file system that does not answer.
func TestStuck_WhereAThreadWaits(t *testing.T) {
	testx.Must(t, Stuck())
	dir, ended := t.TempDir(), make(chan error, 1)
	t.Cleanup(func() { // after that of the file system
		if err := <-ended; err == nil {
			t.Error("a program was started")
		}
	})
	hungfs.Mount(t, dir)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_FORCE) })                // busy, but ended: the child has its descriptor too
	go func() { ended <- exec.Command(filepath.Join(dir, "program")).Run() }() // ends with the file system
	testx.Eventually(t, "a thread that is stuck", func() bool { return Stuck() != nil })
	if err := Stuck(); !errors.Is(err, errdefs.ErrUnavailable) || !strings.HasPrefix(err.Error(), "1 threads wait") {
		t.Errorf("Stuck() = %v", err)
	}
}
