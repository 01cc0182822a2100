// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	mostRequests = 256              // at a time: each has a connection, with the kernel's buffer
	mostAnswers  = 8                // in memory
	writeTimeout = 10 * time.Second // in which a client may read its answer
)

// answer is what a scrape gave, for all who waited for it.
type answer struct {
	ready chan struct{} // closed when the next two are there
	text  []byte
	err   error

	readers map[*http.ResponseController]bool // of the turns that it is in, guarded by their mu
}

// turns does one scrape at a time. A request waits for the next one that begins, with all others that came before that.
type turns struct {
	scrape   func(context.Context) ([]byte, error)
	requests *semaphore.Weighted
	work     sync.WaitGroup // the goroutine that scrapes, while somebody waits

	mu sync.Mutex
	// +checklocks:mu
	busy bool // that goroutine runs
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	next *answer // of the scrape that has not begun; nil: nobody waits for it
	// +checklocks:mu
	read []*answer // those that have readers, oldest first
}

func newTurns(scrape func(context.Context) ([]byte, error)) *turns {
	return &turns{scrape: scrape, requests: semaphore.NewWeighted(mostRequests)}
}

// close waits for the scrape that goes on. There is none after it.
func (t *turns) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.work.Wait()
}

// wait returns the answer of a scrape that began after the call, or an error when ctx ends.
func (t *turns) wait(ctx context.Context) (*answer, error) {
	a := t.join(ctx)
	if a == nil {
		return nil, errors.New("this program ends")
	}
	select {
	case <-a.ready:
		return a, nil
	case <-ctx.Done():
		return nil, errors.New("the scrape has not ended in time")
	}
}

// join returns the answer of the next scrape, nil after close.
func (t *turns) join(ctx context.Context) *answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	if t.next == nil {
		t.next = &answer{ready: make(chan struct{}), readers: map[*http.ResponseController]bool{}}
	}
	if !t.busy {
		t.busy = true
		t.work.Go(func() { t.scrapeAll(context.WithoutCancel(ctx)) }) // which others wait for, too
	}
	return t.next
}

// scrapeAll scrapes until nobody waits.
func (t *turns) scrapeAll(ctx context.Context) {
	for {
		t.mu.Lock()
		a := t.next
		t.next, t.busy = nil, a != nil
		t.mu.Unlock()
		if a == nil {
			return
		}
		a.text, a.err = t.scrape(ctx)
		close(a.ready)
	}
}

// write gives an answer to a client.
func (t *turns) write(w http.ResponseWriter, a *answer) {
	client := http.NewResponseController(w)
	t.begin(a, client)
	defer t.end(a, client)
	w.Header().Set("Content-Length", strconv.Itoa(len(a.text)))
	_, _ = w.Write(a.text) // the client may have gone, or has been cut off
}

// begin makes room for an answer: clients that have read the oldest one for longest are cut off.
func (t *turns) begin(a *answer, client *http.ResponseController) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.read, a) {
		t.read = append(t.read, a)
	}
	for len(t.read) > mostAnswers {
		for slow := range t.read[0].readers {
			_ = slow.SetWriteDeadline(time.Unix(1, 0)) // as below
		}
		t.read = slices.Delete(t.read, 0, 1)
	}
	a.readers[client] = true
	_ = client.SetWriteDeadline(time.Now().Add(writeTimeout)) // some tests have no connection
}

func (t *turns) end(a *answer, client *http.ResponseController) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(a.readers, client)
	if len(a.readers) == 0 {
		t.read = slices.DeleteFunc(t.read, func(b *answer) bool { return a == b })
	}
}
