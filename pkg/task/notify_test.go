// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

func TestNotify_SocketEndsWithTheContainer(t *testing.T) {
	engine := &fakeEngine{}
	s := newManager(t, engine)
	spec := annotated("notify", "true")
	spec.Process.Env = []string{"A=1", "NOTIFY_SOCKET=/other", "B=2"}
	spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1000, Size: 10}}
	bundle := newBundle(t, spec)
	before := files(t, bundle)
	c, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle})
	must(t, err)
	if got, want := engine.made[0].Spec.Process.Env, []string{"A=1", "B=2", "NOTIFY_SOCKET=/run/notify/notify.sock"}; !slices.Equal(got, want) {
		t.Errorf("environment = %q, want %q", got, want)
	}
	mounts := engine.made[0].Spec.Mounts
	if last := mounts[len(mounts)-1]; last.Destination != "/run/notify" || last.Source != filepath.Join(bundle, "notify") {
		t.Errorf("last mount = %+v, want that of the socket", last)
	}
	info, err := os.Stat(filepath.Join(bundle, "notify", "notify.sock"))
	must(t, err)
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != 1000 || info.Mode().Perm() != 0o666 {
		t.Errorf("socket of user %d with mode %v, want the container's root and that all may write", stat.Uid, info.Mode())
	}
	if state := c.Notified(); state == nil || state.Ready {
		t.Errorf("Notified = %+v, want nothing yet", state)
	}
	_, err = s.Delete(t.Context(), "c1", "")
	must(t, err)
	if got := files(t, bundle); got != before {
		t.Errorf("files = %q, want %q", got, before)
	}
}

func TestNotify_StartEndsWithItsCallerOrInit(t *testing.T) {
	s := newManager(t, &fakeEngine{})
	for id, end := range map[string]func(*Task){
		"c1": func(c *Task) { must(t, c.Init().Kill(syscall.SIGKILL)) },
		"c2": nil,
	} {
		c, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: newBundle(t, annotated("notify", "true"))})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan error, 1)
		go func() {
			_, err := s.Start(ctx, id, "")
			started <- err
		}()
		for c.Init().Status().State != process.Running {
			<-time.After(time.Millisecond)
		}
		if end == nil {
			cancel()
			wantText(t, <-started, "not ready yet: context canceled")
			must(t, c.Init().Kill(syscall.SIGKILL)) // it goes on running
		} else {
			end(c)
			if err := <-started; !errdefs.IsAborted(err) {
				t.Errorf("Start = %v, want that init exited", err)
			}
		}
		_, err = c.Init().Wait(t.Context())
		must(t, err)
		_, err = s.Delete(t.Context(), id, "")
		must(t, err)
		cancel()
	}
}
