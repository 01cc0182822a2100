// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
)

// fixture is a receiver of the test.
type fixture struct{ *Receiver }

func listen(t *testing.T) fixture {
	t.Helper()
	owner := idmap.Owner{UID: os.Getuid(), GID: os.Getgid()}
	if _, err := Listen(filepath.Join(t.TempDir(), "gone", "notify"), owner, log.L); err == nil {
		t.Fatal("Listen in a directory that is not there worked")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // an address has room for 108 bytes
	testx.Must(t, os.Mkdir(dir, 0o700))
	r, err := Listen(filepath.Join(dir, "notify"), owner, log.L)
	testx.Must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
		if left := testx.Files(t, dir); left != "" {
			t.Errorf("Close left %v", left)
		}
	})
	return fixture{r}
}

// send sends from this process, along with files.
func (f fixture) send(t *testing.T, text string, files ...*os.File) {
	t.Helper()
	var fds []int
	for _, file := range files {
		fds = append(fds, int(file.Fd()))
	}
	testx.Must(t, send(f.dir, text, fds...))
}

// send waits while the queue is full.
func send(dir, text string, fds ...int) error {
	parent, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	for {
		err = unix.Sendmsg(socket, []byte(text), unix.UnixRights(fds...), &unix.SockaddrUnix{Name: address(parent)}, 0)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// barrier waits until everything that was sent before has taken effect, as sd_notify_barrier(3) does.
func (f fixture) barrier(t *testing.T) {
	t.Helper()
	ours, theirs, err := os.Pipe()
	testx.Must(t, err)
	defer ours.Close()
	f.send(t, "BARRIER=1", theirs)
	testx.Must(t, errors.Join(theirs.Close(), ours.SetReadDeadline(time.Now().Add(time.Minute))))
	if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

var never = make(chan struct{})

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestAwait_EndsWithReady(t *testing.T) {
	f := listen(t)
	f.send(t, "STATUS=soon\nERRNO=2")
	f.send(t, "READY=1")
	f.send(t, "READY=1\nSTATUS=up")
	if err := f.Await(time.Minute, time.Hour, never); err != nil {
		t.Errorf("Await = %v", err)
	}
	f.barrier(t)
	if got, want := f.State(), (State{Ready: true, Status: "up", Errno: 2}); got != want {
		t.Errorf("State = %+v, want %+v", got, want)
	}
}

func TestAwait_ReadsWhatWasSentBeforeAnExit(t *testing.T) {
	f := listen(t)
	f.send(t, "STATUS=broken")
	if err := f.Await(time.Minute, time.Hour, closed()); !errors.Is(err, ErrExited) {
		t.Errorf("Await = %v, want %v", err, ErrExited)
	}
	if got := f.State().Status; got != "broken" {
		t.Errorf("Status = %q, want broken", got)
	}
	f.send(t, "READY=1")
	if err := f.Await(time.Minute, time.Hour, closed()); err != nil {
		t.Errorf("Await after READY=1 = %v", err)
	}
}

func TestAwait_EndsInTimeUnlessExtended(t *testing.T) {
	f := listen(t)
	if err := f.Await(10*time.Millisecond, time.Hour, never); !errors.Is(err, ErrTimeout) {
		t.Errorf("Await = %v, want %v", err, ErrTimeout)
	}
	// Less than the time there is anyway changes nothing.
	f.send(t, "EXTEND_TIMEOUT_USEC=1")
	f.barrier(t)
	began := time.Now()
	if err := f.Await(50*time.Millisecond, time.Hour, never); !errors.Is(err, ErrTimeout) || time.Since(began) < 50*time.Millisecond {
		t.Errorf("Await = %v after %v, want %v after 50ms", err, time.Since(began), ErrTimeout)
	}
	f.send(t, "EXTEND_TIMEOUT_USEC=200000")
	f.barrier(t)
	began = time.Now()
	if err := f.Await(time.Millisecond, time.Hour, never); !errors.Is(err, ErrTimeout) || time.Since(began) < 100*time.Millisecond {
		t.Errorf("Await = %v after %v, want %v after about 200ms", err, time.Since(began), ErrTimeout)
	}
}

func TestReceive_GarbageIsHarmless(t *testing.T) {
	f := listen(t)
	for _, text := range []string{"", "\x00\x00", "READY=1\x00x", "READY=1\n" + strings.Repeat("x", longest), strings.Repeat("READY\n", 600)} {
		f.send(t, text)
	}
	f.barrier(t)
	if got := f.State(); got != (State{}) {
		t.Errorf("State = %+v, want nothing", got)
	}
}

// descriptors counts those of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	testx.Must(t, err)
	return len(entries)
}

func TestReceive_ClosesDescriptors(t *testing.T) {
	f := listen(t)
	f.barrier(t)
	before := descriptors(t)
	null, err := os.Open(os.DevNull)
	testx.Must(t, err)
	f.send(t, "READY=1", slices.Repeat([]*os.File{null}, 253)...) // as many as there can be (unix(7), SCM_MAX_FD)
	f.send(t, "FDSTORE=1", null, null)
	f.barrier(t)
	testx.Must(t, null.Close())
	if got := descriptors(t); got > before {
		t.Errorf("%d descriptors, want %d", got, before)
	}
	if !f.State().Ready {
		t.Error("not ready by a message with descriptors")
	}
}

func TestReceive_LimitsAFlood(t *testing.T) {
	f := listen(t)
	flood := exec.CommandContext(t.Context(), os.Args[0])
	flood.Env = append(os.Environ(), "FLOOD="+f.dir)
	testx.Must(t, flood.Start())
	began, last := time.Now(), ""
	testx.Eventually(t, "messages of the third hundred are read", func() bool {
		number, _, _ := strings.Cut(f.State().Status, "x")
		n, _ := strconv.Atoi(number)
		last = number
		return n > 2*rate
	})
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("%s messages were read in %v, want two pauses of a second", last, took)
	}
	testx.Must(t, flood.Process.Kill())
	_ = flood.Wait() // killed, as it says
}

func TestMain(m *testing.M) {
	if dir := os.Getenv("FLOOD"); dir != "" { // as the program of the test above
		for i := 0; ; i++ {
			if err := send(dir, fmt.Sprintf("STATUS=%d%s", i, strings.Repeat("x", 2000))); err != nil {
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

// A descriptor whose closing takes for ever keeps nobody from removing the container: here that of a connection with
// data that are never read (SO_LINGER in socket(7)).
func TestClose_DoesNotWaitForDescriptorsThatHang(t *testing.T) {
	f := listen(t)
	defer f.reader.Wait()
	for _, what := range []string{"one that is read", "one that is not, since the other one hangs"} {
		peer := lingering(t, func(fd int) { testx.Must(t, send(f.dir, what, fd)) })
		defer peer.Close() // which ends the waiting
	}
	began := time.Now()
	if err := f.Await(time.Nanosecond, time.Nanosecond, nil); !errors.Is(err, ErrTimeout) || time.Since(began) > 10*readTimeout {
		t.Errorf("Await = %v after %v", err, time.Since(began))
	}
	done := make(chan struct{})
	go func() { defer close(done); testx.Must(t, f.Close()) }()
	testx.Within(t, "Close", done)
	if testx.Exists(f.dir) {
		t.Error("Close left the directory")
	}
}

// lingering hands a connection's descriptor to send, which has the last one then, and returns the other end.
func lingering(t *testing.T, send func(fd int)) net.Conn {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	testx.Must(t, err)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Addr().String())
	testx.Must(t, err)
	peer, err := server.Accept()
	testx.Must(t, err)
	tcp := conn.(*net.TCPConn)
	testx.Must(t, errors.Join(tcp.SetLinger(1000), tcp.SetWriteDeadline(time.Now().Add(100*time.Millisecond))))
	for err == nil { // until no more fits
		_, err = tcp.Write(make([]byte, 1<<16))
	}
	raw, err := tcp.SyscallConn()
	testx.Must(t, err)
	testx.Must(t, raw.Control(func(fd uintptr) { send(int(fd)) }))
	// The one that was sent is the last, unless the receiver was faster: then this waits until the peer is closed.
	go func() { _ = tcp.Close() }()
	return peer
}
