// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func get(ctx context.Context) *http.Request {
	return httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
}

// gated scrapes when the test lets it.
type gated struct {
	*Exporter
	began, ends chan struct{} // one of each for a scrape
}

func newGated() *gated {
	g := &gated{&Exporter{}, make(chan struct{}), make(chan struct{})}
	g.turns = newTurns(func(context.Context) ([]byte, error) {
		g.began <- struct{}{}
		<-g.ends
		return []byte("text"), nil
	})
	return g
}

// A request waits no longer than whoever asked.
func TestTurns_AreWaitedForWithTheRequest(t *testing.T) {
	g := newGated()
	ctx, cancel := context.WithCancel(t.Context())
	w, done := httptest.NewRecorder(), make(chan struct{})
	go func() { defer close(done); g.ServeHTTP(w, get(ctx)) }()
	<-g.began
	cancel()
	<-done
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d while a scrape goes on, want %d", w.Code, http.StatusServiceUnavailable)
	}
	g.ends <- struct{}{}
	g.turns.close()
	w = httptest.NewRecorder()
	if g.ServeHTTP(w, get(t.Context())); w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d after close, want %d", w.Code, http.StatusServiceUnavailable)
	}
}

// All that come while a scrape goes on share the next one, and too many are refused.
func TestTurns_RequestsThatWaitShareOneScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scrapes, end := 0, make(chan struct{})
		e := &Exporter{}
		e.turns = newTurns(func(context.Context) ([]byte, error) {
			scrapes++
			<-end
			return []byte("text"), nil
		})
		const tooMany = 10
		codes := make(chan int, mostRequests+tooMany)
		ask := func() {
			w := httptest.NewRecorder()
			e.ServeHTTP(w, get(t.Context()))
			codes <- w.Code
		}
		go ask()
		synctest.Wait() // for the first scrape
		for range mostRequests + tooMany - 1 {
			go ask()
		}
		synctest.Wait()
		all := map[int]int{}
		for range len(codes) {
			all[<-codes]++
		}
		close(end)
		synctest.Wait()
		for range len(codes) {
			all[<-codes]++
		}
		if all[http.StatusServiceUnavailable] != tooMany || all[http.StatusOK] != mostRequests || scrapes != 2 {
			t.Errorf("%d scrapes, and requests by status: %v, want 2, and %d refused of %d", scrapes, all, tooMany,
				mostRequests+tooMany)
		}
		e.turns.close()
	})
}

// stuck is of a client that does not read.
type stuck struct {
	*httptest.ResponseRecorder
	began chan struct{}
	cut   chan struct{}
	once  sync.Once
	timed atomic.Bool // it has a deadline
	t     *testing.T
}

func (s *stuck) SetWriteDeadline(at time.Time) error {
	s.timed.Store(true)
	if left := time.Until(at); left <= 0 {
		s.once.Do(func() { close(s.cut) })
	} else if left > time.Minute {
		s.t.Errorf("the client has %v to read, want some seconds", left)
	}
	return nil
}

func (s *stuck) Write([]byte) (int, error) {
	if !s.timed.Load() {
		s.t.Error("the client may take for ever to read")
	}
	close(s.began)
	<-s.cut
	return 0, errors.New("deadline exceeded")
}

// Clients that do not read hold up no other, and share what they keep in memory.
func TestTurns_AnswersInMemoryAreBounded(t *testing.T) {
	g := newGated()
	defer g.turns.close()
	scrape := func() { <-g.began; g.ends <- struct{}{} }
	var clients []*stuck
	var work sync.WaitGroup
	for range mostAnswers + 3 {
		s := &stuck{ResponseRecorder: httptest.NewRecorder(), began: make(chan struct{}), cut: make(chan struct{}), t: t}
		work.Go(func() { g.ServeHTTP(s, get(t.Context())) })
		scrape()
		<-s.began
		clients = append(clients, s)
	}
	for _, s := range clients[:3] {
		<-s.cut
	}
	for i, s := range clients[3:] {
		select {
		case <-s.cut:
			t.Errorf("client %d of %d is cut off, which are as many as there may be", i+1, mostAnswers)
		default:
		}
	}
	w, done := httptest.NewRecorder(), make(chan struct{})
	go func() { defer close(done); g.ServeHTTP(w, get(t.Context())) }()
	scrape()
	<-done
	if w.Code != http.StatusOK || w.Body.String() != "text" {
		t.Errorf("status %d while others do not read: %s", w.Code, w.Body)
	}
	for _, s := range clients {
		_ = s.SetWriteDeadline(time.Now()) // as time goes by
	}
	work.Wait()
}

// Over the network, the kernel keeps as little as it can for those that do not read.
func TestServe_AnswersBesideClientsThatDoNotRead(t *testing.T) {
	e := &Exporter{}
	text := []byte(strings.Repeat("x", 8<<20))
	e.turns = newTurns(func(context.Context) ([]byte, error) { return text, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, l, e) }()
	for range 100 {
		c, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		defer func() { _ = c.Close() }() // no more is read
		_, err = c.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
		must(t, err)
		_, err = c.Read(make([]byte, 1)) // it is being answered
		must(t, err)
	}
	if n := length(t, "http://"+l.Addr().String()+"/metrics"); n != len(text) {
		t.Errorf("%d bytes beside clients that do not read, want %d", n, len(text))
	}
	e.turns.mu.Lock()
	if n := len(e.turns.read); n > mostAnswers {
		t.Errorf("%d answers in memory, want at most %d", n, mostAnswers)
	}
	e.turns.mu.Unlock()
	cancel()
	must(t, <-served)
}
