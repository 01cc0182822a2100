// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"sandbox.internal/shim/pkg/stats"
)

func TestThoseWhoAskMeanwhileHaveOneAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s stats.Shared
		want := errors.New("its error")
		gate := make(chan struct{})
		calls := 0
		ask := func() {
			got, err := s.Do(func() (string, error) {
				calls++
				<-gate
				return "answer", want
			})
			if got != "answer" || !errors.Is(err, want) {
				t.Errorf("Do = %q, %v, want answer, %v", got, err, want)
			}
		}
		for range 5 {
			go ask()
		}
		synctest.Wait() // one works, four wait for it
		close(gate)
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls for five at once, want 1", calls)
		}
		ask()
		if calls != 2 {
			t.Errorf("%d calls after one more, want 2: nothing is kept", calls)
		}
	})
}
