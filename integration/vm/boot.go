// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// bootTime is how long a boot may take before another one is tried.
const bootTime = 2 * time.Minute

// boot runs qemu until it ends, by itself or since ctx, Config.Timeout or bootTime does.
func boot(ctx context.Context, c Config, args []string) (int, error) {
	// Pdeathsig is sent when the thread that started qemu ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, stop := context.WithTimeoutCause(ctx, c.Timeout,
		fmt.Errorf("%w: the command did not end within %v", errTimeout, c.Timeout))
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	overdue := time.AfterFunc(bootTime, func() { cancel(fmt.Errorf("%w within %v", errNoSign, bootTime)) })
	defer overdue.Stop()
	var console tail
	status := -1
	qemu := exec.CommandContext(ctx, machines[c.Arch].qemu, args...)
	qemu.Stdout, qemu.Stderr = &console, &console
	// A process group of its own: an interrupt from the terminal is for the caller, which ends ctx.
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	err := run(qemu,
		func(r io.Reader) { drain(io.MultiWriter(&console, c.Console), r) },
		func(r io.Reader) { drain(c.Stdout, r) },
		func(r io.Reader) { drain(c.Stderr, r) },
		func(r io.Reader) {
			for lines := bufio.NewScanner(r); lines.Scan(); { // "started", and then "status N"
				overdue.Stop()
				if text, ok := strings.CutPrefix(lines.Text(), "status "); ok {
					_, _ = fmt.Sscan(text, &status) // what is no number is no status
				}
			}
		})
	switch {
	case status >= 0:
		return status, nil
	case errors.Is(context.Cause(ctx), errTimeout):
		return StatusTimeout, context.Cause(ctx)
	case ctx.Err() == nil:
		return StatusFailed, fmt.Errorf("the guest ended without a status: %w; its console ends:\n%s",
			errors.Join(err, errdefs.ErrUnknown), &console)
	case errors.Is(context.Cause(ctx), errNoSign):
		return StatusFailed, fmt.Errorf("%w; its console ends:\n%s", context.Cause(ctx), &console)
	}
	return StatusFailed, context.Cause(ctx)
}

// run runs qemu with one pipe for each reader, from descriptor 3 on. The readers have goroutines of their own, which
// end when qemu does, since it has the other ends. They have ended when run returns.
func run(qemu *exec.Cmd, readers ...func(io.Reader)) error {
	var group sync.WaitGroup
	defer group.Wait()
	for _, read := range readers {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer func() { _ = w.Close() }() // before group.Wait
		qemu.ExtraFiles = append(qemu.ExtraFiles, w)
		group.Go(func() {
			defer func() { _ = r.Close() }() // it was read to its end
			read(r)
		})
	}
	if err := qemu.Start(); err != nil {
		return err
	}
	for _, w := range qemu.ExtraFiles {
		_ = w.Close() // qemu has it
	}
	return qemu.Wait()
}

// drain copies until r ends, and reads on when w fails: qemu must never wait for its reader.
func drain(w io.Writer, r io.Reader) {
	if _, err := io.Copy(w, r); err != nil {
		_, _ = io.Copy(io.Discard, r) // w has failed already
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

func (t *tail) Write(p []byte) (int, error) {
	const limit = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-limit):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ReplaceAll(string(t.text), "\r", ""))
}
