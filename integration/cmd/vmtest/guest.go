// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandbox.internal/shim/integration/vm"
)

// errStill ends a guest in which nothing happens any more.
var errStill = errors.New("the guest stands still")

const (
	// killTime is how long a package that has taken its time may take to print where it hangs.
	killTime = 30 * time.Second
	// writeTime bounds how long the guest keeps what was written to a log.
	writeTime = time.Minute
	// guests is how many guests are tried. The guest ends tests that hang, so a guest that does not has a kernel, or an
	// emulator, that hangs.
	guests = 2
)

// runGuest runs the plan in a guest, and in another one if the first stands still.
func runGuest(ctx context.Context, c vm.Config, logs string, limit time.Duration) (int, error) {
	console := filepath.Join(filepath.Dir(logs), "console.log")
	for n := 1; ; n++ {
		status, err := watched(ctx, c, logs, console, limit+killTime+writeTime)
		if n == guests || !errors.Is(err, errStill) {
			return status, err
		}
		fmt.Fprintf(os.Stderr, "vmtest: guest %d of %d: %v\n", n, guests, err)
	}
}

// watched runs the plan in a guest that ends with errStill if it writes nothing to its logs for so long.
func watched(ctx context.Context, c vm.Config, logs, console string, silence time.Duration) (int, error) {
	file, err := os.OpenFile(console, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return vm.StatusFailed, err
	}
	defer func() { _ = file.Close() }() // it only helps to explain a failure
	c.Console = file
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go watch(ctx, cancel, logs, console, silence) // ends with ctx
	return vm.Run(ctx, c)
}

// watch cancels with errStill once nothing was written to the logs for so long, of those that were begun meanwhile.
func watch(ctx context.Context, cancel context.CancelCauseFunc, logs, console string, silence time.Duration) {
	began := time.Now()
	ticker := time.NewTicker(min(silence/4, 10*time.Second))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		name, written, err := newest(logs, began)
		if err != nil {
			cancel(err)
			return
		}
		if name != "" && time.Since(written) > silence {
			cancel(fmt.Errorf("%w: nothing was written to %s for %v; it ends:\n%s\nand its console ends:\n%s",
				errStill, name, silence, end(name), end(console)))
			return
		}
	}
}

// newest returns the file in a directory that was written last, if it was since then, and when.
func newest(dir string, since time.Time) (string, time.Time, error) {
	var name string
	last := since
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", last, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return "", last, err
		}
		if info.ModTime().After(last) {
			name, last = filepath.Join(dir, e.Name()), info.ModTime()
		}
	}
	return name, last, nil
}

// end returns the last lines of a file, or why they cannot be read.
func end(name string) string {
	const most = 10
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return strings.ReplaceAll(string(bytes.Join(lines[max(0, len(lines)-most):], []byte("\n"))), "\r", "")
}
