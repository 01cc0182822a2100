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

	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

func TestCreateRefusesNotifySettings(t *testing.T) {
	const key = "config.json: annotations: io.containerd.sandbox.v1/"
	const form = "must be a time such as 500ms, 90s or 1m30s, more than 0 and at most 24h"
	wantRefused(t, map[string]asked{
		key + `notify "yes": must be true or false`:                       {annotations: map[string]string{"notify": "yes"}},
		key + `notify "": must be true or false`:                          {annotations: map[string]string{"notify": ""}},
		key + `notify-timeout "": ` + form:                                {annotations: map[string]string{"notify": "true", "notify-timeout": ""}},
		key + `notify-timeout "0s": ` + form:                              {annotations: map[string]string{"notify": "true", "notify-timeout": "0s"}},
		key + `notify-timeout "-1s": ` + form:                             {annotations: map[string]string{"notify": "true", "notify-timeout": "-1s"}},
		key + `notify-timeout "90": ` + form:                              {annotations: map[string]string{"notify": "true", "notify-timeout": "90"}},
		key + `notify-timeout "24h1s": ` + form:                           {annotations: map[string]string{"notify": "true", "notify-timeout": "24h1s"}},
		key + `notify-timeout "5s": needs ` + annotationPrefix + "notify": {annotations: map[string]string{"notify-timeout": "5s"}},
		`runtime options: NotifyTimeout "x": ` + form:                     {options: options.Options{Notify: true, NotifyTimeout: "x"}},
		`runtime options: NotifyTimeout "5s": needs Notify`:               {options: options.Options{NotifyTimeout: "5s"}},
	})
}

func TestNotifySettings(t *testing.T) {
	for _, tc := range []struct {
		name string
		asked
		want time.Duration
	}{
		{"nothing", asked{}, 0},
		{"an annotation", asked{annotations: map[string]string{"notify": "true"}}, 90 * time.Second},
		{"an annotation with a time", asked{annotations: map[string]string{"notify": "true", "notify-timeout": "1m30s"}}, 90 * time.Second},
		{"options", asked{options: options.Options{Notify: true, NotifyTimeout: "5s"}}, 5 * time.Second},
		{"each key for itself", asked{map[string]string{"notify-timeout": "7s"}, options.Options{Notify: true, NotifyTimeout: "5s"}}, 7 * time.Second},
		{"an annotation against the options", asked{map[string]string{"notify": "false"}, options.Options{Notify: true, NotifyTimeout: "5s"}}, 0},
	} {
		got, err := notifyTimeoutOf(tc.spec(), tc.options)
		if err != nil || got != tc.want {
			t.Errorf("%s: notifyTimeoutOf = %v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}

func TestInitIsGivenANotifySocketThatEndsWithTheContainer(t *testing.T) {
	engine := &fakeEngine{}
	s := newManager(t, engine)
	spec := asked{annotations: map[string]string{"notify": "true"}}.spec()
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
	if state, ok := c.Notified(); !ok || state.Ready {
		t.Errorf("Notified = %+v, %t, want nothing yet", state, ok)
	}
	_, err = s.Delete(t.Context(), "c1", "")
	must(t, err)
	if got := files(t, bundle); got != before {
		t.Errorf("files = %q, want %q", got, before)
	}
}

func TestAStartThatWaitsForReadinessEndsWithItsCallerOrInit(t *testing.T) {
	s := newManager(t, &fakeEngine{})
	for id, end := range map[string]func(*Container){
		"c1": func(c *Container) { must(t, c.Init().Kill(syscall.SIGKILL)) },
		"c2": nil,
	} {
		c, err := s.Create(t.Context(), CreateRequest{ID: id, Bundle: newBundle(t, asked{annotations: map[string]string{"notify": "true"}}.spec())})
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
		<-c.readiness.started
		_, err = c.Init().Wait(t.Context())
		must(t, err)
		_, err = s.Delete(t.Context(), id, "")
		must(t, err)
		cancel()
	}
}
