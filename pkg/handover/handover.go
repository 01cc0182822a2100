// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package handover replaces the program of this process by another one, in place (execve(2)): the process keeps its id,
// its parent, its children and the descriptors that the successor is to have. What the process knows goes to the
// successor as JSON in a sealed memory file, which is the successor's standard input
// (docs/decisions/0021-upgrade-in-place.md).
//
// A [Saver] collects descriptors while the state is made. A [Program] is checked, asked by [Program.Check], and
// executed by [Program.Exec]. The successor reads the state with [Load]. There are no goroutines and no locks: the
// caller sees to it that nothing else makes, closes or passes on descriptors that are handed over.
package handover

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"
	"golang.org/x/sys/unix"
)

// Format is the version of the state that this program writes. It reads this one and the one before.
const Format = 1

// FD is a descriptor in a state; 0 is none.
type FD int

// Saver collects the descriptors of a state.
type Saver struct{ fds, streams []int }

// Keep has the successor get the descriptor of f, under the same number. A file that is nil or closed gives 0.
func (s *Saver) Keep(f syscall.Conn) FD {
	conn, err := f.SyscallConn()
	var kept FD
	if err == nil {
		err = conn.Control(func(fd uintptr) { kept = s.KeepFD(int(fd)) })
	}
	if err != nil { // it fails for no other reason
		return 0
	}
	return kept
}

// KeepStream is Keep for a file of which nobody else may have a copy: a reader would not see the end of a pipe, or
// bytes be kept for a reader that is not there. The child of [Program.Start] has /dev/null in its place.
func (s *Saver) KeepStream(f syscall.Conn) FD {
	fd := s.Keep(f)
	if fd != 0 {
		s.streams = append(s.streams, int(fd))
	}
	return fd
}

// KeepFD is Keep for a descriptor that is open.
func (s *Saver) KeepFD(fd int) FD {
	s.fds = append(s.fds, fd)
	return FD(fd)
}

// envelope is what surrounds a state.
type envelope struct {
	Format  int
	Version string // of the program that wrote it
	FDs     []int  // all that are handed over
	Back    FD     // of them, the file of the program that wrote it
	Body    json.RawMessage
}

// State is a state that is ready for a successor.
type State struct {
	file    *os.File
	fds     []int
	streams []int // of these, what a child must not have
	back    *os.File
}

// State writes body, and all that was kept, for a successor. back is the file of this program, of the given version.
// The caller closes both.
func (s *Saver) State(version string, back *os.File, body any) (_ *State, err error) {
	e := envelope{Format: Format, Version: version, Back: s.Keep(back)}
	e.FDs = s.fds
	if e.Body, err = json.Marshal(body); err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	text, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode the state: %w", err)
	}
	file, err := sealed(text)
	if err != nil {
		return nil, fmt.Errorf("memory file of the state: %w", err)
	}
	return &State{file: file, fds: s.fds, streams: s.streams, back: back}, nil
}

// Close frees the memory.
func (s *State) Close() error { return s.file.Close() }

// sealed returns a file with text in memory that nobody can change.
func sealed(text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "state")
	if _, err = file.WriteAt(text, 0); err == nil { // its offset stays at the beginning
		const all = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, all)
		err = os.NewSyscallError("fcntl", err)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Loader gives the descriptors of a state to those who restore it.
type Loader struct {
	Version string // of the program that wrote the state
	state   *os.File
	fds     []int // not taken yet
	all     []int
	later   []io.Closer
}

// Load reads the state from its file into body. From then on no descriptor is inherited by children. A state that is
// not complete, or of another format, is errdefs.ErrInvalidArgument. After another error the Loader is for [Return].
func Load(file *os.File, body any) (*Loader, error) {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<62)) // another process may have moved the offset
	if err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	e, err := decode(text, body)
	if err != nil {
		return nil, fmt.Errorf("the state: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	l := &Loader{Version: e.Version, state: file, fds: slices.Clone(e.FDs), all: e.FDs}
	for _, fd := range e.FDs {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return l, fmt.Errorf("descriptor %d: %w", fd, os.NewSyscallError("fcntl", err))
		}
	}
	back, err := l.File(e.Back, "former program") // also in that program, to which a successor has returned
	if back != nil {
		l.CloseLater(back)
	}
	return l, err
}

// decode reads a state. Standard streams are not handed over, and no descriptor twice.
func decode(text []byte, body any) (e envelope, err error) {
	if err := json.Unmarshal(text, &e); err != nil {
		return e, err
	}
	if e.Format != Format && e.Format != Format-1 || e.Format < 1 {
		return e, fmt.Errorf("format %d of version %q: must be %d or the one before", e.Format, e.Version, Format)
	}
	sorted := slices.Sorted(slices.Values(e.FDs))
	if len(sorted) > 0 && sorted[0] <= syscall.Stderr || len(slices.Compact(sorted)) != len(e.FDs) {
		return e, fmt.Errorf("descriptors %v: must be above 2, each once", e.FDs)
	}
	return e, json.Unmarshal(e.Body, body)
}

// Take returns a descriptor, once.
func (l *Loader) Take(fd FD) (int, error) {
	i := slices.Index(l.fds, int(fd))
	if i < 0 {
		return -1, fmt.Errorf("the state: descriptor %d: was not handed over, or is named twice: %w",
			fd, errdefs.ErrInvalidArgument)
	}
	l.fds = slices.Delete(l.fds, i, i+1)
	return int(fd), nil
}

// File returns a descriptor as a file, once, or nil for 0.
func (l *Loader) File(fd FD, name string) (*os.File, error) {
	if fd == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	n, err := l.Take(fd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(n), name), nil
}

// CloseLater closes a file at [Loader.Commit]: a return to the former program needs its descriptor.
func (l *Loader) CloseLater(f io.Closer) { l.later = append(l.later, f) }

// Unused returns an error if nobody has taken some descriptor: it would be open for ever.
func (l *Loader) Unused() error {
	if len(l.fds) > 0 {
		return fmt.Errorf("the state: descriptors %v are of no use: %w", l.fds, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Commit is called when the successor goes on for good. It frees what only [Return] needs; the standard input is
// /dev/null again.
func (l *Loader) Commit() error {
	clearEnv()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = os.NewSyscallError("dup3", unix.Dup3(int(null.Fd()), int(l.state.Fd()), 0))
	for _, f := range append(l.later, null) {
		err = errors.Join(err, f.Close())
	}
	return err
}
