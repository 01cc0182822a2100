// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package native

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// startInit runs a shell script by an init, after the steps that prepare adds. What both print comes from the reader,
// to the end of all processes.
func startInit(t *testing.T, program, script string, prepare ...func(*Request)) (*os.Process, *bufio.Reader) {
	t.Helper()
	p, err := New("shim-test", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	file, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() }) // only read
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r := held(t)
	run, err := p.Start(r, [3]*os.File{null, writer, writer}, file)
	_ = writer.Close() // the program has its own
	if err != nil {
		t.Fatal(err)
	}
	var request Request
	const self = Socket + 1
	for fd := Socket; fd <= self; fd++ {
		request.Call(unix.SYS_FCNTL, fd, unix.F_SETFD, unix.FD_CLOEXEC)
	}
	for _, add := range prepare {
		add(&request)
	}
	request.Lookup(program)
	request.ExecInit(self, []string{"sh", "-c", script}, request.Strings([]string{"PATH=" + os.Getenv("PATH"), "A=b"}))
	init, err := run.Execute(t.Context(), &request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = init.Kill() // dead already is as good
		r.Unregister(init.Pid)
	})
	return init, bufio.NewReader(reader)
}

func wantStatus(t *testing.T, init *os.Process, want int) {
	t.Helper()
	state, err := init.Wait()
	if err != nil || state.ExitCode() != want {
		t.Errorf("the init ended with %v, %v, want status %d", state, err, want)
	}
}

func TestInit_EndsAsItsChild(t *testing.T) {
	for script, want := range map[string]int{
		"exit 7": 7, "kill -9 $$": 137, "kill -TERM $$": 143, "test $A = b && test $(ps -o comm= $PPID) = init && exit 8": 8,
		"(sleep 0.05; exit 3) & exit 4": 4,
	} {
		init, output := startInit(t, "/bin/sh", script)
		wantStatus(t, init, want)
		if text, err := io.ReadAll(output); err != nil || len(text) > 0 {
			t.Errorf("%q prints %q, %v", script, text, err)
		}
	}
}

func TestInit_HandsSignalsOnAndReaps(t *testing.T) {
	init, output := startInit(t, "/bin/sh", `orphan=$(sh -c 'sleep 1000 >/dev/null 2>&1 & echo $!')
		for s in USR1 ABRT TRAP SYS SEGV BUS ILL FPE; do trap "echo caught $s" $s; done; trap 'kill $orphan; exit 5' TERM
		echo $orphan; while :; do sleep 0.01; done`)
	line := func() string {
		t.Helper()
		text, err := output.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(text)
	}
	orphan := line()
	status, err := os.ReadFile(filepath.Join("/proc", orphan, "status"))
	if want := fmt.Sprintf("\nPPid:\t%d\n", init.Pid); err != nil || !strings.Contains(string(status), want) {
		t.Errorf("the orphan is %q, %v, want the init as its parent: %q", status, err, want)
	}
	for _, sig := range []unix.Signal{
		unix.SIGUSR1, unix.SIGABRT, unix.SIGTRAP, unix.SIGSYS, unix.SIGSEGV, unix.SIGBUS, unix.SIGILL, unix.SIGFPE,
	} {
		if err := init.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got, want := line(), "caught "+strings.TrimPrefix(unix.SignalName(sig), "SIG"); got != want {
			t.Errorf("the program prints %q, want %q", got, want)
		}
	}
	if err := init.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, init, 5)
}

// A file that is executable and no program.
func TestInit_TellsWhyItsProgramDoesNotRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o700); err != nil {
		t.Fatal(err)
	}
	init, output := startInit(t, file, "")
	wantStatus(t, init, 255)
	if text, err := io.ReadAll(output); err != nil || string(text) != "exec "+file+": errno 008\n" {
		t.Errorf("it prints %q, %v", text, err)
	}
}

// filtered loads a filter that answers one system call so.
func filtered(call, answer uint32) func(*Request) {
	return func(r *Request) {
		var program []byte
		for _, i := range []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
			{Code: unix.BPF_RET, K: answer},
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
		} {
			program, _ = binary.Append(program, binary.NativeEndian, i) // its size is fixed
		}
		r.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		filter := r.Table(len(program)/unix.SizeofSockFilter, program)
		r.Call(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, filter)
	}
}

func TestInit_TellsThatItCannotFork(t *testing.T) {
	init, output := startInit(t, "/bin/sh", "", filtered(unix.SYS_CLONE, unix.SECCOMP_RET_ERRNO|uint32(unix.EAGAIN)))
	wantStatus(t, init, 255)
	if text, err := io.ReadAll(output); err != nil || string(text) != "init: fork: errno 011\n" {
		t.Errorf("it prints %q, %v", text, err)
	}
}

// A signal that the kernel sends to it for what it did itself is blocked too.
func TestInit_EndsByAFaultOfItsOwn(t *testing.T) {
	const script = "echo ready; while [ -e /proc/$PPID ]; do sleep 0.01; done"
	init, output := startInit(t, "/bin/sh", script, filtered(unix.SYS_KILL, unix.SECCOMP_RET_TRAP))
	if text, err := output.ReadString('\n'); err != nil {
		t.Fatal(text, err)
	}
	if err := init.Signal(unix.SIGUSR1); err != nil { // which it would hand on by kill(2)
		t.Fatal(err)
	}
	state, err := init.Wait()
	if err != nil || state.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
		t.Errorf("the init ended with %v, %v, want SIGSYS", state, err)
	}
}
