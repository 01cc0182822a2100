// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/integration/harness"
)

// upgradable is a test on a containerd with a shim that can be replaced.
type upgradable struct {
	*env
	installed *harness.Installed
}

func newUpgradable(t *testing.T) *upgradable {
	t.Helper()
	harness.OursOnly(t, "a shim that becomes its successor in place")
	changed, installed := harness.Install(t, shared.Env)
	return &upgradable{newEnvOn(t, startContainerd(t, changed)), installed}
}

func (e *upgradable) address(id string) string {
	e.Helper()
	address, err := harness.ShimAddress(e.bundle(id))
	e.must(err, "address of the shim")
	return address
}

// upgrade has the shim of a container become another program, and checks that it is one, in the same process.
func (e *upgradable) upgrade(id string) {
	e.Helper()
	pid := e.shim(id)
	e.installed.Release(e)
	_, upgraded, err := harness.Upgrade(e.ctx, e.address(id), false)
	e.must(err, "upgrade")
	if !upgraded {
		e.Error("the shim says that it runs the installed program already")
	}
	if now := e.shim(id); now != pid {
		e.Errorf("the shim is process %d, and was %d", now, pid)
	}
	e.wantProgram(pid)
}

// wantProgram checks that the shim runs the installed program.
func (e *upgradable) wantProgram(pid int) {
	e.Helper()
	program, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	e.must(err, "program")
	file, err := os.Stat(e.installed.Path)
	e.must(err, "program")
	if !os.SameFile(program, file) {
		e.Error("the shim does not run the installed program")
	}
	wantCloseOnExec(e, pid)
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || string(name) != "containerd-shim\n" {
		e.Errorf("the name of the shim is %q, %v", name, err)
	}
}

// wantCloseOnExec checks that no program that the shim starts would have its descriptors. Standard streams lead to
// /dev/null.
func wantCloseOnExec(tb testing.TB, pid int) {
	tb.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil || len(files) == 0 {
		tb.Fatalf("descriptors of the shim: %v, %v", files, err)
	}
	for _, file := range files {
		fd := filepath.Base(file)
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was closed meanwhile
		}
		harness.Must(tb, err)
		_, rest, _ := strings.Cut(string(text), "flags:\t")
		var flags uint64
		_, err = fmt.Sscanf(rest, "%o", &flags)
		harness.Must(tb, err)
		link, _ := os.Readlink(filepath.Join(filepath.Dir(file), "..", "fd", fd)) // it was closed meanwhile
		if fd > "2" || len(fd) > 1 {
			if flags&unix.O_CLOEXEC == 0 {
				tb.Errorf("descriptor %s of the shim, %s, is not closed by execve(2)", fd, link)
			}
		} else if link != os.DevNull {
			tb.Errorf("descriptor %s of the shim is %s, want %s", fd, link, os.DevNull)
		}
	}
}

func TestUpgrade_ContainersDoNotNotice(t *testing.T) {
	e := newUpgradable(t)
	logStart := e.containerd.LogSize()
	talker := e.run("talker", config{opts: with(inOneShim)}, "sh", "-c",
		`i=0; while :; do echo "line $i"; i=$((i+1)); usleep 1000; done`)
	created := e.create("created", config{opts: with(inOneShim)}, "sh", "-c", "echo begun; exit 3")
	paused := e.run("paused", config{opts: with(inOneShim)}, "sleep", "1000")
	e.must(paused.Pause(e.ctx), "pause")
	gone := e.run("gone", config{opts: with(inOneShim)}, "sh", "-c", "echo gone; exit 4")
	if got := gone.exit(); got != 4 {
		t.Errorf("exit status of gone = %d, want 4", got)
	}
	keyboard, stdin := typed(e.env)
	reader := talker.startExec("reader", config{stdin: stdin}, nil, "sh", "-c",
		`while read -r line; do echo "got $line"; done; echo end; exit 5`)
	terminalKeyboard, terminalIn := typed(e.env)
	terminal := talker.startExec("terminal", config{stdin: terminalIn, terminal: true}, nil, "sh", "-c",
		`stty -echo; echo ready; while read -r line; do echo "got $line"; stty size; done`)
	terminal.out.WaitFor(t, "ready")
	added := talker.exec("added", config{}, nil, "sh", "-c", "echo added; exit 6")
	ended := talker.startExec("ended", config{}, nil, "sh", "-c", "echo ended; exit 7")
	if got := ended.exit(); got != 7 {
		t.Errorf("exit status of ended = %d, want 7", got)
	}
	for i := range 5 {
		e.upgrade("talker")
		line := fmt.Sprintf("after %d", i)
		e.typeLine(keyboard, line)
		reader.out.WaitFor(t, "got "+line)
		e.must(terminal.Resize(e.ctx, uint32(80+i), 24), "resize")
		e.typeLine(terminalKeyboard, line)
		terminal.out.WaitFor(t, fmt.Sprintf("got %s\r\n24 %d", line, 80+i))
		talker.runExec(fmt.Sprintf("x%d", i), "true")
	}
	for line := range strings.Lines(e.containerd.LogFrom(logStart)) {
		if strings.Contains(line, "level=warn") || strings.Contains(line, "level=error") || strings.Contains(line, "disconnected") {
			t.Errorf("containerd logs %s", line)
		}
	}
	if status := paused.status("paused"); status.Status != client.Paused {
		t.Errorf("paused = %+v", status)
	}
	e.must(paused.Resume(e.ctx), "resume")
	paused.kill()
	e.must(created.process.Start(e.ctx), "start")
	created.wantExit(3)
	if got := created.out.String(); got != "begun\n" {
		t.Errorf("output of created = %q", got)
	}
	gone.delete()
	if got := gone.out.String(); got != "gone\n" {
		t.Errorf("output of gone = %q", got)
	}
	e.must(added.Start(e.ctx), "start added")
	added.wantExit(6)
	ended.delete()
	e.must(reader.CloseIO(e.ctx, withStdin), "close stdin")
	e.must(keyboard.Close(), "close stdin")
	reader.out.WaitFor(t, "end\n")
	reader.wantExit(5)
	terminal.kill()
	talker.kill()
	wantConsecutive(e.env, talker.out.String())
	e.wantEvents("gone", "create gone | start gone | exit gone 4 | delete gone")
}

func TestUpgrade_HalfARequestIsNotLost(t *testing.T) {
	e := newUpgradable(t)
	c := e.run("c1", config{}, "sleep", "1000")
	request, err := proto.Marshal(&taskapi.ConnectRequest{ID: "c1"})
	e.must(err, "encode")
	payload, err := proto.Marshal(&ttrpc.Request{Service: "containerd.task.v3.Task", Method: "Connect", Payload: request})
	e.must(err, "encode")
	const stream, typeRequest = 1, 1
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	frame = append(binary.BigEndian.AppendUint32(frame, stream), typeRequest, 0)
	head := len(frame)
	frame = append(frame, payload...)
	for _, half := range []int{1, head, head + 5, len(frame) - 1} {
		conn, err := net.Dial("unix", strings.TrimPrefix(e.address("c1"), "unix://"))
		e.must(err, "dial")
		e.must(conn.SetDeadline(time.Now().Add(harness.Slow(20*time.Second))), "set deadline")
		_, err = conn.Write(frame[:half])
		e.must(err, "write the beginning of a request")
		e.upgrade("c1")
		_, err = conn.Write(frame[half:])
		e.must(err, "write the rest")
		answer := make([]byte, head)
		_, err = io.ReadFull(conn, answer)
		e.must(err, fmt.Sprintf("read the answer to a request that was cut after %d bytes", half))
		if got := binary.BigEndian.Uint32(answer[4:]); got != stream {
			t.Errorf("the answer is for stream %d, want %d", got, stream)
		}
		e.must(conn.Close(), "close")
	}
	c.kill()
}

func TestUpgrade_IsRefused(t *testing.T) {
	e := newUpgradable(t)
	c := e.run("c1", config{}, "sleep", "1000")
	program, err := os.ReadFile(shared.Env.Shim)
	e.must(err, "program")
	for name, tt := range map[string]struct {
		install func()
		class   error
		words   string
	}{
		"the same": {install: func() {}},
		"no program": {
			install: func() { e.installed.Replace(t, []byte("no program")) },
			words:   "exec format error",
		},
		"one that refuses": {
			install: func() { e.installed.Bad(t, "refuses") },
			class:   errdefs.ErrFailedPrecondition, words: "refuses: exit status 1: no such thing",
		},
		"one that hangs": {
			install: func() { e.installed.Bad(t, "hangs") },
			class:   context.DeadlineExceeded, words: "no answer",
		},
		"of others": {
			install: func() {
				e.installed.Replace(t, append(program, "other"...))
				e.must(os.Chmod(e.installed.Path, 0o777), "chmod")
			},
			class: errdefs.ErrFailedPrecondition, words: "its mode is 0777: must not let others write",
		},
		"gone": {
			install: func() {
				e.must(os.Rename(e.installed.Path, filepath.Join(filepath.Dir(e.installed.Path), "other")), "rename")
			},
			words: "no such file or directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e.installed.Restore(t)
			tt.install()
			_, upgraded, err := harness.Upgrade(e.ctx, e.address("c1"), false)
			if tt.words == "" {
				if err != nil || upgraded {
					t.Errorf("upgraded: %t, %v", upgraded, err)
				}
				return
			}
			wantError(t, err, tt.class, tt.words)
			c.runExec("x-"+strings.ReplaceAll(name, " ", "-"), "true")
		})
	}
	e.installed.Restore(t)
	c.kill()
}

// The shim goes on while the other program checks the state, which is that of a container that ends meanwhile.
func TestUpgrade_AContainerEndsDuringTheCheck(t *testing.T) {
	e := newUpgradable(t)
	stays := e.run("stays", config{opts: with(inOneShim)}, "sleep", "1000")
	ends := e.run("ends", config{opts: with(inOneShim)}, "sleep", "1000")
	x := ends.startExec("x", config{}, nil, "sleep", "1000")
	created := e.create("created", config{opts: with(inOneShim)}, "sleep", "1000")
	gate := harness.NewGate(t, t.TempDir())
	e.installed.Waits(t, gate)
	address := e.address("stays")
	done := make(chan error, 1)
	go func() {
		_, _, err := harness.Upgrade(e.ctx, address, false)
		done <- err
	}()
	gate.WaitReached()
	ends.kill()
	x.closeIO()
	created.kill()
	gate.Open()
	e.must(<-done, "upgrade")
	stays.runExec("x", "true")
	stays.kill()
}

func TestUpgrade_ASuccessorThatFailsGivesWay(t *testing.T) {
	e := newUpgradable(t)
	c := e.run("c1", config{}, "sh", "-c", `i=0; while :; do echo "line $i"; i=$((i+1)); usleep 1000; done`)
	pid := e.shim("c1")
	own, err := os.Stat(e.installed.Path)
	e.must(err, "program")
	e.installed.Bad(t, "gives way")
	_, _, err = harness.Upgrade(e.ctx, e.address("c1"), false)
	wantError(t, err, errdefs.ErrInternal, "the other program failed, and this one goes on: it is bad")
	program, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	e.must(err, "program")
	if !os.SameFile(program, own) {
		t.Error("the shim does not run its former program")
	}
	c.runExec("x", "true")
	e.upgrade("c1")
	e.must(unix.Kill(int(c.Task.Pid()), unix.SIGKILL), "kill")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	c.delete()
	wantConsecutive(e.env, c.out.String())
}

func TestUpgrade_NoByteOfTheOutputIsLost(t *testing.T) {
	e := newUpgradable(t)
	size, upgrades := 64<<20, 10
	if os.Getenv("SHIM_TEST_UPGRADES") == "all" {
		size, upgrades = 1<<30, 50
	}
	// What follows a line depends on its number, so that nothing can be left out, or come twice, without a difference.
	const script = `seq 100000000000 999999999999 | head -c "$0"`
	want := sha256.New()
	program := exec.CommandContext(e.ctx, "sh", "-c", script, strconv.Itoa(size))
	program.Stdout = want
	e.must(program.Run(), "the same on the host")
	got := &slowly{Hash: sha256.New(), size: int64(size) / int64(upgrades+1), next: make(chan struct{})}
	c := e.run("c1", config{io: cio.NewCreator(cio.WithStreams(nil, got, nil), cio.WithFIFODir(e.containerd.Fifos))},
		"sh", "-c", script, strconv.Itoa(size))
	for range upgrades {
		got.next <- struct{}{}
		e.upgrade("c1") // with the pipe, the fifo and the shim full, or while it copies
	}
	close(got.next)
	c.wantExit(0)
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("the output has another hash, and %d bytes, want %d", got.read, size)
	}
}

// slowly reads a part of an output each time when next allows it.
type slowly struct {
	hash.Hash
	size, read, allowed int64
	next                chan struct{}
}

func (s *slowly) Write(b []byte) (int, error) {
	for s.read >= s.allowed {
		<-s.next
		s.allowed += s.size
	}
	s.read += int64(len(b))
	return s.Hash.Write(b)
}

func TestUpgrade_EachKindOfStreamGoesOn(t *testing.T) {
	e := newUpgradable(t)
	dir := publicDir(t)
	const script = `i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); usleep 100; done`
	program := "#!/bin/sh\nprintf x >&5\nexec 5>&-\ncat <&3 >" + dir + "/logger\necho end >>" + dir + "/logger\n"
	e.must(os.WriteFile(filepath.Join(dir, "program"), []byte(program), 0o700), "program")
	to := func(scheme, name string) config {
		return config{opts: with(inOneShim), io: cio.LogURI(&url.URL{Scheme: scheme, Path: filepath.Join(dir, name)})}
	}
	brief := "#!/bin/sh\nprintf x >&5\nexec 5>&-\nhead -n 1 <&3 >" + dir + "/brief\n"
	e.must(os.WriteFile(filepath.Join(dir, "program2"), []byte(brief), 0o700), "program")
	all := map[string]*task{
		"brief":    e.run("brief", to("binary", "program2"), "sh", "-c", script), // its logging binary does not last
		"file":     e.run("file", to("file", "file"), "sh", "-c", script),
		"logger":   e.run("logger", to("binary", "program"), "sh", "-c", script),
		"terminal": e.run("terminal", config{opts: with(inOneShim), terminal: true}, "sh", "-c", script),
		"deaf":     e.run("deaf", config{opts: with(inOneShim), io: e.deaf}, "yes"),
	}
	wantBlocked(t, &all["deaf"].process)
	harness.Eventually(t, "the first line in "+dir+"/brief", func() error {
		text, err := os.ReadFile(filepath.Join(dir, "brief"))
		if err == nil && len(text) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	for range 5 {
		e.upgrade("brief")
	}
	wantBlocked(t, &all["deaf"].process)
	for _, id := range []string{"brief", "file", "logger", "terminal"} {
		all[id].wantExit(0)
	}
	text, err := os.ReadFile(filepath.Join(dir, "file"))
	e.must(err, "file")
	wantConsecutive(t, string(text))
	text, err = os.ReadFile(filepath.Join(dir, "logger"))
	e.must(err, "file of the logging binary")
	logged, ended := strings.CutSuffix(string(text), "end\n")
	if !ended {
		t.Errorf("the logging binary has not seen the end: %.100q", text)
	}
	wantConsecutive(t, logged)
	wantConsecutive(t, strings.ReplaceAll(all["terminal"].out.String(), "\r", ""))
	for _, got := range []string{string(text), all["terminal"].out.String()} {
		if !strings.Contains(got, "line 1999") {
			t.Errorf("the last line is not there: %.100q", got)
		}
	}
	all["deaf"].kill()
}

func TestUpgrade_LimitsOfExecsGoOn(t *testing.T) {
	e := newUpgradable(t)
	j := judge{e.env, publicDir(t)}
	j.allow("verdict-file")
	c := j.run("c1", config{opts: with(j.limited("wall-time=60s,cpu-time=60s,memory=64Mi,pids=32,output=64Ki"))}, "sleep", "1000")
	sleeps, spins := j.asExec(c, "sleeps", []string{"SANDBOX_LIMIT_WALL_TIME=2s"}, "sleep 1000"), j.asExec(c, "spins", []string{"SANDBOX_LIMIT_CPU_TIME=1s"}, spin)
	prints := j.asExec(c, "prints", nil, "yes | head -c 50000; until [ -e /tmp/go ]; do usleep 1000; done; yes | head -c 50000")
	e.upgrade("c1")
	c.runExec("go", "touch", "/tmp/go")
	allocates := j.asExec(c, "allocates", nil, "until [ -e /tmp/eat ]; do usleep 1000; done; "+glutton)
	e.must(c.Pause(e.ctx), "pause")
	e.upgrade("c1")
	e.must(c.Resume(e.ctx), "resume")
	c.runExec("eat", "touch", "/tmp/eat")
	for id, x := range map[string]*process{"sleeps": sleeps, "spins": spins, "prints": prints, "allocates": allocates} {
		x.exit()
		v := j.verdict("c1", id)
		x.delete()
		want := map[string]string{"sleeps": "wall-time", "spins": "cpu-time", "allocates": "memory"}[id]
		if v.Limit != want || want != "" && v.Status != 137 {
			t.Errorf("%s: verdict %+v, want the limit %q", id, v, want)
		}
		switch {
		case id == "sleeps" && (v.Wall < 2*time.Second || v.Wall > harness.Slow(3*time.Second)):
			t.Errorf("%s ran for %v, want 2 s", id, v.Wall)
		case id == "prints" && (v.Stdout.Written != 100000 || v.Stdout.Dropped != 100000-65536):
			t.Errorf("%s: %+v, want 100000 bytes, of which all but 64 KiB are dropped", id, v.Stdout)
		}
	}
	c.kill()
}

func TestUpgrade_ExtensionsGoOn(t *testing.T) {
	e := newUpgradable(t)
	e.allow("pid-file", "listen", "host-rootfs")
	dir := publicDir(t)
	pidFile := filepath.Join(dir, "pid")
	c := e.create("c1", config{opts: with(notified("60s"), annotations(
		annotationPidFile, pidFile,
		"io.containerd.sandbox.v1/listen", "unix:///run/log.sock",
		"io.containerd.sandbox.v1/host-rootfs", "/usr:/host/usr",
	))}, "sh", "-c", tell+`tell "STATUS=first\nREADY=1"; touch /tmp/first; until [ -e /tmp/go ]; do usleep 1000; done; tell "STATUS=second"; exec sleep 1000`)
	e.upgrade("c1") // before the start
	e.must(c.process.Start(e.ctx), "start")
	e.upgrade("c1")
	c.runExec("go", "touch", "/tmp/go")
	if _, err := os.Stat(pidFile); err != nil {
		t.Errorf("pid file: %v", err)
	}
	socket := fmt.Sprintf("/proc/%d/root/run/log.sock", c.Task.Pid())
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("socket: %v", err)
	}
	c.kill()
	if _, err := os.Stat(pidFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pid file after the end: %v, want that it is gone", err)
	}
}

func TestUpgrade_AnOOMKillIsReportedOnce(t *testing.T) {
	e := newUpgradable(t)
	memory := uint64(64 * mib)
	c := e.run("c1", config{opts: with(oci.WithMemoryLimit(memory))}, "sleep", "1000")
	c.startExec("x1", config{}, nil, "sh", "-c", glutton).wantExit(137)
	e.waitEvents("c1", "oom c1")
	e.upgrade("c1")
	e.upgrade("c1")
	c.startExec("x2", config{}, nil, "sh", "-c", glutton).wantExit(137)
	e.waitEvents("c1", "exec-start x2 | oom c1")
	c.kill()
	if got := strings.Count(e.events.Text("c1"), "oom"); got != 2 {
		t.Errorf("events %q, want two OOM kills", e.events.Text("c1"))
	}
}

func TestUpgrade_WaitsForWhatIsUnderWay(t *testing.T) {
	e := newUpgradable(t)
	c := e.create("c1", config{opts: with(notified("60s"))}, "sh", "-c", tell+`
		touch /tmp/runs; until [ -e /tmp/go ]; do usleep 1000; done; tell "READY=1"; exec sleep 1000`)
	started := c.starting()
	c.file("/tmp/runs")
	e.installed.Release(t)
	_, _, err := harness.Upgrade(e.ctx, e.address("c1"), false)
	wantError(t, err, errdefs.ErrUnavailable, "under way: Start")
	c.runExec("go", "touch", "/tmp/go") // it goes on
	e.must(<-started, "start")
	_, upgraded, err := harness.Upgrade(e.ctx, e.address("c1"), true)
	if err != nil || !upgraded {
		t.Errorf("dry run: %t, %v", upgraded, err)
	}
	e.upgrade("c1")
	c.kill()
}
