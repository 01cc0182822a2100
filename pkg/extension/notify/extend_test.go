// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func TestAwait_NoLongerThanTheLongest(t *testing.T) {
	const most = 24 * time.Hour
	for _, tt := range []struct {
		name   string
		every  time.Duration // how often it asks
		extend string        // for how much
		want   time.Duration
	}{
		{"ten years, once", 100 * time.Hour, "315360000000000", most},
		{"a little more each time", time.Minute, "120000000", most},
		{"all that there is, to the microsecond", 100 * time.Hour, "86400000000", most},
		{"less", 100 * time.Hour, "3600000000", time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &Receiver{conn: &net.UnixConn{}, ready: make(chan struct{})}
				began, over := time.Now(), make(chan struct{})
				go func() {
					for time.Since(began) < 2*most {
						r.apply([]byte("EXTEND_TIMEOUT_USEC=" + tt.extend))
						select {
						case <-time.After(tt.every): // of the bubble's clock
						case <-over:
							return
						}
					}
				}()
				err := r.Await(90*time.Second, most, nil)
				close(over)
				if took := time.Since(began); !errors.Is(err, ErrTimeout) || took != tt.want {
					t.Errorf("Await = %v after %v, want %v after %v", err, took, ErrTimeout, tt.want)
				}
			})
		})
	}
}

// As in systemd (service_extend_event_source_timeout).
func TestAwait_LessTimeShortensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Receiver{conn: &net.UnixConn{}, ready: make(chan struct{})}
		began := time.Now()
		r.apply([]byte("EXTEND_TIMEOUT_USEC=3600000000")) // an hour
		time.AfterFunc(100*time.Second, func() { r.apply([]byte("EXTEND_TIMEOUT_USEC=5000000")) })
		err := r.Await(90*time.Second, 24*time.Hour, nil)
		if took := time.Since(began); !errors.Is(err, ErrTimeout) || took != time.Hour {
			t.Errorf("Await = %v after %v, want %v after an hour", err, took, ErrTimeout)
		}
	})
}

func TestAwait_ReadsWhatWasSentBeforeTheTimeIsOver(t *testing.T) {
	for range 20 {
		f := listen(t)
		f.send(t, "READY=1")
		if err := f.Await(0, time.Hour, never); err != nil {
			t.Fatalf("Await after READY=1 = %v", err)
		}
		f = listen(t)
		f.send(t, "EXTEND_TIMEOUT_USEC=50000")
		began := time.Now()
		if err := f.Await(0, time.Hour, never); !errors.Is(err, ErrTimeout) || time.Since(began) < 20*time.Millisecond {
			t.Fatalf("Await = %v after %v, want %v after about 50ms", err, time.Since(began), ErrTimeout)
		}
	}
}
