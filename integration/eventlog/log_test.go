// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/api/events"

	"sandbox.internal/shim/integration/eventlog"
)

func TestText_KeepsOrderAndSeparatesContainers(t *testing.T) {
	l := eventlog.New()
	for _, e := range []any{
		&events.TaskCreate{ContainerID: "a"},
		&events.TaskCreate{ContainerID: "b"},
		&events.TaskStart{ContainerID: "a"},
		&events.TaskExecAdded{ContainerID: "a", ExecID: "e"},
		&events.TaskExit{ContainerID: "a", ID: "e", ExitStatus: 3},
		&events.TaskExit{ContainerID: "b", ID: "b"},
	} {
		l.Add(eventlog.Entry{Event: e})
	}
	if got, want := l.Text("a"), "create a | start a | exec-added e | exit e 3"; got != want {
		t.Errorf("Text(a) = %q, want %q", got, want)
	}
	if got, want := l.Text("b"), "create b | exit b"; got != want {
		t.Errorf("Text(b) = %q, want %q", got, want)
	}
}

func TestWait_ReturnsAtTheEventOrNamesTheText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := eventlog.New()
		exited := func(text string) bool { return strings.Contains(text, "exit a") }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go l.Add(eventlog.Entry{Event: &events.TaskExit{ContainerID: "a", ID: "a"}})
		if err := l.Wait(ctx, "a", exited); err != nil {
			t.Errorf("Wait = %v, want nil", err)
		}
		err := l.Wait(ctx, "b", exited)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("Wait = %v, want a deadline that names the container", err)
		}
	})
}
