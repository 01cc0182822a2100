// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Started is called once, after the process was created. It closes the process's ends, receives the master of the
// terminal if there is one, and starts the copying. It waits for the master until ctx ends or consoleTimeout. After an
// error nothing is copied, and the caller must still call Close.
func (s *Streams) Started(ctx context.Context) error {
	s.mu.Lock()
	if s.started || s.closed {
		s.mu.Unlock()
		return fmt.Errorf("start copying the streams: already started or closed: %w", errdefs.ErrFailedPrecondition)
	}
	s.started = true
	s.mu.Unlock()

	// Otherwise our copies would keep the pipes from ever ending.
	for _, f := range s.child {
		_ = f.Close() // fails if it is nil or a Close was faster
	}
	if s.terminal == nil {
		return s.copyPipes()
	}
	master, err := s.terminal.receive(ctx)
	if err != nil {
		return err
	}
	return s.copyTerminal(master)
}

func (s *Streams) copyPipes() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed("start copying the streams")
	}
	if s.input != nil {
		s.copyInput(s.inPipe)
	}
	for i, out := range s.outputs {
		if out != nil {
			s.copyOutput(outputNames[i], s.outPipes[i], out, false)
		}
	}
	return nil
}

func (s *Streams) copyTerminal(fd int) error {
	master, err := newPipeEnd(fd, "terminal")
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(errClosed("start copying the terminal"), master.Close())
	}
	s.terminal.master = master // Close closes it from now on
	if size := s.terminal.size; size != nil {
		if err := s.terminal.resize(size); err != nil {
			return err
		}
	}
	if s.input != nil {
		s.copyInput(&terminalInput{master: master})
	}
	out := s.outputs[0]
	if out == nil {
		out = discard{} // somebody must read, or the process would block on a full terminal
	}
	s.copyOutput(outputNames[0], master, out, true)
	if s.outputs[1] != nil {
		s.copyOutput(outputNames[1], s.outPipes[1], s.outputs[1], false)
	}
	return nil
}

// copyInput starts the copying of stdin. It is called with mu held and closed not set, so that Close waits for every
// goroutine.
func (s *Streams) copyInput(to sink) {
	s.copy(&copier{name: "stdin", from: s.input.pipeEnd, source: s.input, to: to})
}

// copyOutput starts the copying of an output. It is called like copyInput.
func (s *Streams) copyOutput(name string, from *pipeEnd, to sink, isTerminal bool) {
	c := &copier{name: name, from: from, source: from, to: to, terminal: isTerminal, persistent: true}
	s.copiers = append(s.copiers, c)
	s.copy(c)
}

func (s *Streams) copy(c *copier) {
	c.logger, c.kept, c.ended = s.logger, s.kept, make(chan struct{})
	if p, ok := c.to.(interface{ spliceTo() *pipeEnd }); ok && !c.terminal {
		c.pipe = p.spliceTo()
	}
	s.copying.Go(c.run) // ends with its source or what it leads to, or in Close, which joins it
}

// CloseStdin lets the stdin of the process end. As with the runc shim, the process reads to the last byte that a client
// sends, and sees the end when every client has closed the fifo. Until CloseStdin, clients may come and go
// (containerd-shim-runc-v2/process/init.go, openStdin: CloseIO closes the shim's own writer). A terminal in line mode
// gets its end-of-file character. Without stdin, and when called again, it does nothing.
func (s *Streams) CloseStdin() error {
	if s.input == nil {
		return nil
	}
	return closeAll(s.input.hold)
}

// Resize sets the size of the terminal in characters. A size set before Started is applied there. Without a terminal,
// and after Close, it is errdefs.ErrFailedPrecondition.
func (s *Streams) Resize(width, height uint16) error {
	if s.terminal == nil {
		return fmt.Errorf("resize to %dx%d: the process has no terminal: %w", width, height, errdefs.ErrFailedPrecondition)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed(fmt.Sprintf("resize to %dx%d", width, height))
	}
	return s.terminal.resize(&unix.Winsize{Col: width, Row: height})
}

func errClosed(op string) error {
	return fmt.Errorf("%s: the streams are closed: %w", op, errdefs.ErrFailedPrecondition)
}
