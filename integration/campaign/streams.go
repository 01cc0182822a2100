// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"

	"sandbox.internal/shim/integration/harness"
)

// line is what some programs write, and read.
const line = "hello\n"

// streams are those of an exec. They are nil for a program that neither reads nor writes.
type streams struct {
	io      cio.IO
	program program
	out     harness.Buffer
	stdin   *io.PipeReader // closed by close
	ended   chan struct{}  // closed by endStdin
	endOnce sync.Once

	reading  chan struct{} // closed by read: until then, nobody reads what a program that stalls writes
	readOnce sync.Once
}

// openStreams makes the fifos of an exec.
func (e *Env) openStreams(id string, p program) (*streams, error) {
	s := &streams{program: p, ended: make(chan struct{}), reading: make(chan struct{})}
	opts := []cio.Opt{cio.WithFIFODir(e.daemon.Fifos)}
	switch p { //nolint:exhaustive // the others have no streams
	case says, counts, leaves:
		opts = append(opts, cio.WithStreams(nil, &s.out, io.Discard))
	case copies:
		var w *io.PipeWriter
		s.stdin, w = io.Pipe()
		go func() { // ends by endStdin, which close calls
			_, _ = io.WriteString(w, line) // fails when nobody reads any more
			<-s.ended
			_ = w.Close() // it never fails
		}()
		opts = append(opts, cio.WithStreams(s.stdin, &s.out, io.Discard))
	case terminal:
		s.stdin, _ = io.Pipe()
		opts = append(opts, cio.WithStreams(s.stdin, &s.out, nil), cio.WithTerminal)
	case stalls:
		opts = append(opts, cio.WithStreams(nil, stalledReader{s}, nil))
	default:
		return nil, nil
	}
	var err error
	s.io, err = cio.NewCreator(opts...)(id)
	return s, err
}

// stalledReader takes output once somebody reads.
type stalledReader struct{ *streams }

// Write blocks until then.
func (r stalledReader) Write(p []byte) (int, error) {
	<-r.reading
	return r.out.Write(p)
}

// read goes on to read.
func (s *streams) read() {
	if s != nil {
		s.readOnce.Do(func() { close(s.reading) })
	}
}

// config is what the shim is told.
func (s *streams) config() cio.Config {
	if s == nil {
		return cio.Config{}
	}
	return s.io.Config()
}

// end reads the streams of an exec that has ended with code to their end, and closes them. It returns an error if
// output is missing.
func (s *streams) end(code uint8) error {
	if s == nil {
		return nil
	}
	s.read() // what a reader that stalls has left
	ended := make(chan struct{})
	go func() { // ends with the output, at the latest by close
		s.io.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(harness.Slow(2 * time.Second)): // it was deleted without a start, or before its output was read
	}
	s.close()
	out := s.out.String()
	if s.program == stalls && code == 0 && len(out) != stalled {
		return fmt.Errorf("output is %d bytes, want %d", len(out), stalled)
	}
	if (s.program == says || s.program == leaves) && code == 0 && out != line {
		return fmt.Errorf("output is %q, want %q", out, line)
	}
	if all := numbers(); s.program == counts && (code == 0 && out != all || !strings.HasPrefix(all, out)) {
		return fmt.Errorf("output ends with %.20q after %d bytes, want %d, or the beginning of it after exit status %d",
			out[max(0, len(out)-20):], len(out), len(all), code)
	}
	// Standard input may have been closed before anything was written to it.
	if s.program == copies && code == 0 && out != line && out != "" {
		return fmt.Errorf("output is %q, want %q", out, line)
	}
	return nil
}

// numbers is the output of the program that counts.
func numbers() string {
	var text strings.Builder
	for n := range counted {
		fmt.Fprintln(&text, n+1)
	}
	return text.String()
}

// endStdin ends the input on this side, without which CloseIO does not end it: the program reads to the last byte that
// a client sends.
func (s *streams) endStdin() {
	if s != nil {
		s.endOnce.Do(func() { close(s.ended) })
	}
}

// close ends the goroutines of the streams and removes the fifos.
func (s *streams) close() {
	if s == nil || s.io == nil {
		return
	}
	s.endStdin()
	s.read()
	if s.stdin != nil {
		_ = s.stdin.CloseWithError(errors.New("the exec is gone")) // it never fails
	}
	s.io.Cancel()
	_ = s.io.Close() // the fifos may be closed already
}
