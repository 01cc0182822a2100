// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAwait_NoLongerThanTheLongest(t *testing.T) {
	const longest = 24 * time.Hour
	for _, tt := range []struct {
		name   string
		every  time.Duration // how often it asks
		extend string        // for how much
		want   time.Duration
		lines  int // of the log
	}{
		{"ten years, once", 100 * time.Hour, "315360000000000", longest, 1},
		{"a little more each time", time.Minute, "120000000", longest, 1},
		{"all that there is, to the microsecond", 100 * time.Hour, "86400000000", longest, 0},
		{"less", 100 * time.Hour, "3600000000", time.Hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lines []string
				r := &Receiver{ready: make(chan struct{}), extended: make(chan struct{}, 1), log: func(text string, fields map[string]any) {
					lines = append(lines, fmt.Sprint(text, fields))
				}}
				began, over := time.Now(), make(chan struct{})
				go func() {
					for time.Since(began) < 2*longest {
						if !r.apply([]byte("EXTEND_TIMEOUT_USEC="+tt.extend), nil) {
							t.Error("the message is refused")
						}
						select {
						case <-time.After(tt.every): // of the bubble's clock
						case <-over:
							return
						}
					}
				}()
				err := r.Await(90*time.Second, longest, nil)
				close(over)
				if took := time.Since(began); !errors.Is(err, ErrTimeout) || took != tt.want {
					t.Errorf("Await = %v after %v, want %v after %v", err, took, ErrTimeout, tt.want)
				}
				if len(lines) != tt.lines {
					t.Errorf("log = %q, want %d lines", lines, tt.lines)
				}
				for _, line := range lines {
					for _, word := range []string{"EXTEND_TIMEOUT_USEC", "asked:", "longest:24h0m0s"} {
						if !strings.Contains(line, word) {
							t.Errorf("log = %q, want %q in it", line, word)
						}
					}
				}
			})
		})
	}
}

// As in systemd (service_extend_event_source_timeout).
func TestAwait_LessTimeShortensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Receiver{ready: make(chan struct{}), extended: make(chan struct{}, 1), log: func(string, map[string]any) {}}
		began := time.Now()
		r.apply([]byte("EXTEND_TIMEOUT_USEC=3600000000"), nil) // an hour
		time.AfterFunc(100*time.Second, func() { r.apply([]byte("EXTEND_TIMEOUT_USEC=5000000"), nil) })
		err := r.Await(90*time.Second, 24*time.Hour, nil)
		if took := time.Since(began); !errors.Is(err, ErrTimeout) || took != time.Hour {
			t.Errorf("Await = %v after %v, want %v after an hour", err, took, ErrTimeout)
		}
	})
}

// What came before the time was over counts, whichever of the two is noticed first.
func TestAwait_ReadyCountsWhenTheTimeIsOverAsWell(t *testing.T) {
	r := &Receiver{ready: make(chan struct{}), state: State{Ready: true}}
	close(r.ready)
	for range 1000 {
		if err := r.Await(0, time.Hour, never); err != nil {
			t.Fatalf("Await = %v", err)
		}
	}
}

func TestAwait_ReadsWhatWasSentBeforeTheTimeIsOver(t *testing.T) {
	for range 20 {
		f := listen(t, nil)
		f.send(t, "READY=1")
		if err := f.Await(0, time.Hour, never); err != nil {
			t.Fatalf("Await after READY=1 = %v", err)
		}
		f = listen(t, nil)
		f.send(t, "EXTEND_TIMEOUT_USEC=50000")
		began := time.Now()
		if err := f.Await(0, time.Hour, never); !errors.Is(err, ErrTimeout) || time.Since(began) < 20*time.Millisecond {
			t.Fatalf("Await = %v after %v, want %v after about 50ms", err, time.Since(began), ErrTimeout)
		}
	}
}
