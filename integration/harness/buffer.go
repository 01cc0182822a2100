// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// Buffer collects the output of a process. Any number of goroutines may use it.
type Buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

// Write appends p and never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

// String returns everything written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// Reset forgets everything written so far.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data.Reset()
}

// WaitFor returns once the output contains want.
func (b *Buffer) WaitFor(tb testing.TB, want string) {
	tb.Helper()
	Eventually(tb, fmt.Sprintf("output with %q", want), func() error {
		if text := b.String(); !strings.Contains(text, want) {
			return fmt.Errorf("output is %.200q", text)
		}
		return nil
	})
}
