// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var errClosed, errHeld = errors.New("closed"), errors.New("held")

func TestGate(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(g *gate, ctx context.Context) error // after a second, while one is inside
		want error
		took time.Duration
	}{
		"another enters":               {(*gate).enter, nil, 0},
		"an excluder waits":            {(*gate).exclude, nil, 9 * time.Second},
		"it is closed to others":       {closing((*gate).enter), errClosed, 0},
		"it is closed to excluders":    {closing((*gate).exclude), errClosed, 0},
		"it is closed until all leave": {closing((*gate).empty), nil, 9 * time.Second},
		"others wait for an excluder":  {behindExcluder, nil, 9 * time.Second},
		"the excluder gives up":        {bounded((*gate).exclude), context.DeadlineExceeded, 2 * time.Second},
		"tryExclude does not wait":     {tryExclude, errHeld, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate()
				if err := g.enter(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(10*time.Second, g.leave)
				time.Sleep(time.Second)
				began := time.Now()
				if err := tc.do(g, t.Context()); !errors.Is(err, tc.want) {
					t.Errorf("error = %v, want %v", err, tc.want)
				}
				if took := time.Since(began); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

func tryExclude(g *gate, _ context.Context) error {
	if g.tryExclude() {
		return nil
	}
	return errHeld
}

// closing does f with a gate that is closed.
func closing(f func(*gate, context.Context) error) func(*gate, context.Context) error {
	return func(g *gate, ctx context.Context) error {
		g.close(errClosed)
		g.close(errors.New("again"))
		return f(g, ctx)
	}
}

func bounded(f func(*gate, context.Context) error) func(*gate, context.Context) error {
	return func(g *gate, ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return f(g, ctx)
	}
}

// behindExcluder enters behind one that waits to exclude, and then leaves no time in between.
func behindExcluder(g *gate, ctx context.Context) error {
	go func() {
		if g.exclude(ctx) == nil {
			g.readmit()
		}
	}()
	synctest.Wait()
	return g.enter(ctx)
}

// Whoever got in is waited for, whenever the gate is closed.
func TestGate_IsClosedWhileManyEnter(t *testing.T) {
	for range 200 {
		g := newGate()
		inside := make(chan bool, 8)
		for range cap(inside) {
			go func() {
				if g.enter(t.Context()) == nil {
					inside <- true
					g.leave()
				} else {
					inside <- false
				}
			}()
		}
		g.close(errClosed)
		if err := g.empty(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range cap(inside) {
			<-inside
		}
		if err := g.enter(t.Context()); !errors.Is(err, errClosed) {
			t.Fatalf("enter = %v after all have left", err)
		}
	}
}
