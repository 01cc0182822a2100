// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
)

// fixture is a receiver with its log, whose senders are all accepted, but for those that refuse says.
type fixture struct {
	*Receiver
	refuse error

	mu      sync.Mutex
	lines   []string
	senders []Sender
}

func listen(t *testing.T, refuse error) *fixture {
	t.Helper()
	f := &fixture{refuse: refuse}
	if _, err := Listen(filepath.Join(t.TempDir(), "gone", "notify"), idmap.Owner{}, nil); err == nil {
		t.Fatal("Listen in a directory that is not there worked")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // an address has room for 108 bytes
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := Listen(filepath.Join(dir, "notify"), idmap.Owner{UID: os.Getuid(), GID: os.Getgid()}, func(text string, fields map[string]any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lines = append(f.lines, fmt.Sprint(text, fields))
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Receiver = r
	r.Receive(func(s Sender) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.senders = append(f.senders, s)
		return f.refuse
	})
	t.Cleanup(func() {
		for range 2 {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
			t.Errorf("Close left %v", left)
		}
	})
	return f
}

func (f *fixture) log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.lines, "\n")
}

// send sends from this process, along with files.
func (f *fixture) send(t *testing.T, text string, files ...*os.File) {
	t.Helper()
	var fds []int
	for _, file := range files {
		fds = append(fds, int(file.Fd()))
	}
	if err := send(f.dir, text, fds...); err != nil {
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
	f := listen(t, nil)
	f.send(t, "STATUS=soon\nERRNO=2")
	f.send(t, "READY=1")
	f.send(t, "READY=1\nSTATUS=up")
	if err := f.Await(time.Minute, time.Hour, never); err != nil {
		t.Errorf("Await = %v", err)
	}
	f.drainQueue()
	if got, want := f.State(), (State{Ready: true, Status: "up", Errno: 2}); got != want {
		t.Errorf("State = %+v, want %+v", got, want)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.senders) != 3 || f.senders[0].PID != os.Getpid() || f.senders[0].PIDFD >= 0 != givesPidfds(t) {
		t.Errorf("senders = %v, want this process three times, with a pidfd: %v (Linux 6.5)", f.senders, givesPidfds(t))
	}
}

// givesPidfds reports whether the kernel names senders by pidfd.
func givesPidfds(t *testing.T) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was sent
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSPIDFD, 1) == nil
}

func TestAwait_ReadsWhatWasSentBeforeAnExit(t *testing.T) {
	f := listen(t, nil)
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
	f := listen(t, nil)
	if err := f.Await(10*time.Millisecond, time.Hour, never); !errors.Is(err, ErrTimeout) {
		t.Errorf("Await = %v, want %v", err, ErrTimeout)
	}
	// Less than the time there is anyway changes nothing.
	f.send(t, "EXTEND_TIMEOUT_USEC=1")
	f.drainQueue()
	began := time.Now()
	if err := f.Await(50*time.Millisecond, time.Hour, never); !errors.Is(err, ErrTimeout) || time.Since(began) < 50*time.Millisecond {
		t.Errorf("Await = %v after %v, want %v after 50ms", err, time.Since(began), ErrTimeout)
	}
	f.send(t, "EXTEND_TIMEOUT_USEC=200000")
	f.drainQueue()
	began = time.Now()
	if err := f.Await(time.Millisecond, time.Hour, never); !errors.Is(err, ErrTimeout) || time.Since(began) < 100*time.Millisecond {
		t.Errorf("Await = %v after %v, want %v after about 200ms", err, time.Since(began), ErrTimeout)
	}
}

func TestReceive_IgnoresOtherSenders(t *testing.T) {
	f := listen(t, errors.New("a stranger"))
	f.send(t, "READY=1\nSTATUS=x\nERRNO=1\nEXTEND_TIMEOUT_USEC=60000000")
	f.drainQueue()
	if got := f.State(); got != (State{}) {
		t.Errorf("State = %+v, want nothing", got)
	}
	if err := f.Await(time.Millisecond, time.Hour, never); !errors.Is(err, ErrTimeout) {
		t.Errorf("Await = %v, want %v", err, ErrTimeout)
	}
	if got, want := f.log(), fmt.Sprintf("notify: message refusedmap[pid:%d reason:a stranger]", os.Getpid()); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
}

func TestReceive_GarbageIsHarmless(t *testing.T) {
	f := listen(t, nil)
	for _, text := range []string{"", "\x00\x00", "READY=1\x00x", "READY=1\n" + strings.Repeat("x", longest), strings.Repeat("READY\n", 600)} {
		f.send(t, text)
	}
	f.drainQueue()
	if got := f.State(); got != (State{}) {
		t.Errorf("State = %+v, want nothing", got)
	}
	for _, want := range []string{"longer than 4096 bytes", "zero byte in it"} {
		if !strings.Contains(f.log(), want) {
			t.Errorf("log = %q, want %q in it", f.log(), want)
		}
	}
}

// descriptors counts those of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestReceive_ClosesDescriptors(t *testing.T) {
	for _, refuse := range []error{nil, errors.New("a stranger")} {
		f := listen(t, refuse)
		f.drainQueue()
		before := descriptors(t)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		most := make([]*os.File, mostRights)
		for i := range most {
			most[i] = null
		}
		f.send(t, "READY=1", most...)
		f.send(t, "FDSTORE=1", null, null)
		f.drainQueue()
		if err := null.Close(); err != nil {
			t.Fatal(err)
		}
		if got := descriptors(t); got > before {
			t.Errorf("%d descriptors, want %d", got, before)
		}
		if got := f.State().Ready; got != (refuse == nil) {
			t.Errorf("ready = %t with %d descriptors from one who is refused with %v", got, mostRights, refuse)
		}
	}
}

func TestReceive_LimitsAFloodAndItsLog(t *testing.T) {
	f := listen(t, nil)
	flood := exec.CommandContext(t.Context(), os.Args[0])
	flood.Env = append(os.Environ(), "FLOOD="+f.dir)
	if err := flood.Start(); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.senders)
	}
	began := time.Now()
	for count() < 2*rate && time.Since(began) < time.Minute { // the second hundred is read a second later
		<-time.After(time.Millisecond)
	}
	if n := count(); n < 2*rate {
		t.Errorf("%d messages were read in a minute, want %d", n, 2*rate)
	}
	took := time.Since(began)
	if err := flood.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = flood.Wait() // killed, as it says
	if took < 800*time.Millisecond {
		t.Errorf("%d messages were read in %v, want about a second", 2*rate, took)
	}
	if n := strings.Count(f.log(), "\n") + 1; n > 2*logRate {
		t.Errorf("%d lines of log, want at most %d", n, 2*logRate)
	}
	if n := len(f.log()); n > 2*logRate*500 {
		t.Errorf("%d bytes of log", n)
	}
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

func TestLimiter(t *testing.T) {
	p := limiter{most: 2, span: time.Second}
	start := time.Now()
	for _, tc := range []struct{ at, want time.Duration }{
		{0, 0},
		{400 * time.Millisecond, 0},
		{500 * time.Millisecond, 500 * time.Millisecond},
		{time.Second, 0},
		{1500 * time.Millisecond, 0},
		{1999 * time.Millisecond, time.Millisecond},
		{time.Minute, 0},
	} {
		if got := p.wait(start.Add(tc.at)); got != tc.want {
			t.Errorf("wait at %v = %v, want %v", tc.at, got, tc.want)
		}
	}
}

// A descriptor whose closing takes for ever keeps nobody from removing the container: here that of a connection with
// data that are never read (SO_LINGER in socket(7)).
func TestClose_DoesNotWaitForDescriptorsThatHang(t *testing.T) {
	for name, block := range map[string]bool{"one that was read": false, "one that was not": true} {
		gate := make(chan struct{})
		dir := filepath.Join(t.TempDir(), "notify")
		r, err := Listen(dir, idmap.Owner{UID: os.Getuid(), GID: os.Getgid()}, func(string, map[string]any) {})
		if err != nil {
			t.Fatal(err)
		}
		reached := make(chan struct{}, 2)
		r.Receive(func(Sender) error {
			reached <- struct{}{}
			if block {
				<-gate
			}
			return nil
		})
		if block {
			if err := send(dir, "STATUS=the next one is not read"); err != nil {
				t.Fatal(err)
			}
			<-reached
		}
		peer := lingering(t, func(fd int) {
			if err := send(dir, "STATUS=x", fd); err != nil {
				t.Fatal(err)
			}
		})
		if !block {
			<-reached
		}
		done := make(chan error, 1)
		go func() { done <- r.Close() }()
		if block {
			<-r.closed
			close(gate)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: Close = %v", name, err)
			}
		case <-time.After(10 * closeTimeout):
			t.Errorf("%s: Close waits", name)
		}
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s: Close left the directory", name)
		}
		_ = peer.Close() // which ends the waiting
		r.reader.Wait()
	}
}

// lingering hands a connection's descriptor to send, which has the last one then, and returns the other end.
func lingering(t *testing.T, send func(fd int)) net.Conn {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	tcp := conn.(*net.TCPConn)
	if err := errors.Join(tcp.SetLinger(1000), tcp.SetWriteDeadline(time.Now().Add(100*time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	for err == nil { // until no more fits
		_, err = tcp.Write(make([]byte, 1<<16))
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { send(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	// The one that was sent is the last, unless the receiver was faster: then this waits until the peer is closed.
	go func() { _ = tcp.Close() }()
	return peer
}
