// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// logFifo writes log lines to the bundle's fifo `log`, which containerd copies to its own log. It never blocks: while
// containerd is down nobody reads, and what does not fit is dropped and counted.
//
// It writes with write(2) itself: an os.File, and so containerd/fifo, would hand a full fifo to the poller and wait.
// The logger's lock guards it.
type logFifo struct {
	fd      int
	dropped int
	torn    bool // the last line went out in part
}

// openLogFifo opens the fifo for reading and writing: so the open needs no reader, and a write after containerd's end
// is no EPIPE. It returns nil when there is none: a sandbox may have no log.
func openLogFifo(bundle string) (*logFifo, error) {
	path := filepath.Join(bundle, "log")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, errors.Join(fmt.Errorf("open %s: not a fifo", path), unix.Close(fd))
	}
	return &logFifo{fd: fd}, nil
}

// Write writes p or drops it. It always reports success: an error would make the logger write to stderr, which `start`
// must keep silent.
func (l *logFifo) Write(p []byte) (int, error) {
	if l.dropped > 0 || l.torn {
		note := fmt.Appendf(nil, "log was full, %d lines dropped\n", l.dropped)
		if l.torn {
			note = append([]byte("\n"), note...)
		}
		// Shorter than PIPE_BUF, so it goes out whole or not at all (pipe(7)).
		if l.write(note) != len(note) {
			l.dropped++
			return len(p), nil
		}
		l.dropped, l.torn = 0, false
	}
	if n := l.write(p); n < len(p) {
		l.dropped++
		l.torn = n > 0
	}
	return len(p), nil
}

// write returns how many bytes the fifo took.
func (l *logFifo) write(p []byte) int {
	for done := 0; ; {
		n, err := unix.Write(l.fd, p[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return done
		}
		if done += n; done == len(p) {
			return done
		}
	}
}

// logToFifo sends this process's log to bundle's fifo in containerd's text format, and the report of a crash as well.
// The function it returns ends that.
func logToFifo(bundle string, verbose bool) (restore func()) {
	logger := log.L.Logger
	logger.SetOutput(io.Discard) // not stderr: at start it is part of the answer
	// Neither can fail for a constant of the package's own.
	_ = log.SetFormat(log.TextFormat)
	if verbose {
		_ = log.SetLevel(log.DebugLevel.String())
	}
	l, err := openLogFifo(bundle)
	if err != nil || l == nil {
		return func() {} // a shim without a log is better than none
	}
	logger.SetOutput(l)
	crashTo(filepath.Join(bundle, "log"))
	return func() {
		logger.SetOutput(io.Discard)
		_ = unix.Close(l.fd) // nothing is buffered, and nobody writes: the logger has another output
	}
}

// crashTo lets the runtime report a crash of any goroutine to the fifo at path. It gets a description of its own,
// since SetCrashOutput switches it to blocking; that is undone here, or a crash with a full log would hang for ever.
func crashTo(path string) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return // the log has just been opened; without it a crash goes unseen, as it would anyway
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }() // the runtime keeps a duplicate
	if debug.SetCrashOutput(f, debug.CrashOptions{}) != nil {
		return
	}
	if unix.SetNonblock(fd, true) != nil {
		_ = debug.SetCrashOutput(nil, debug.CrashOptions{}) // better no report than a hang
	}
}
