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

var errClosed = errors.New("closed")

func TestGate(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(context.Context, *gate) error // after a second, while one is inside
		want error
		took time.Duration
	}{
		"another enters":               {enter, nil, 0},
		"an excluder waits":            {exclude, nil, 9 * time.Second},
		"it is closed to others":       {closing(enter), errClosed, 0},
		"it is closed to excluders":    {closing(exclude), errClosed, 0},
		"it is closed until all leave": {closing(empty), nil, 9 * time.Second},
		"others wait for an excluder":  {behindExcluder, nil, 9 * time.Second},
		"the excluder gives up":        {briefly, context.DeadlineExceeded, 2 * time.Second},
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
				if err := tc.do(t.Context(), g); !errors.Is(err, tc.want) {
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

func enter(ctx context.Context, g *gate) error { return g.enter(ctx) }

func exclude(ctx context.Context, g *gate) error { return g.exclude(ctx) }

// closing does f with a gate that is closed.
func closing(f func(context.Context, *gate) error) func(context.Context, *gate) error {
	return func(ctx context.Context, g *gate) error {
		g.close(errClosed)
		g.close(errors.New("again"))
		return f(ctx, g)
	}
}

func empty(ctx context.Context, g *gate) error { return g.empty(ctx) }

func briefly(ctx context.Context, g *gate) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return g.exclude(ctx)
}

// behindExcluder enters behind one that waits to exclude, and then leaves no time in between.
func behindExcluder(ctx context.Context, g *gate) error {
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
