// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if want == "" {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s = %q, %v, want that it is gone", path, data, err)
		}
		return
	}
	if err != nil || string(data) != want {
		t.Errorf("%s = %q, %v, want %q", path, data, err, want)
	}
}

func TestPidFile_LivesAsLongAsTheContainer(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name  string
		spec  *specs.Spec
		o     options.Options
		path  string
		there string // before
	}{
		{name: "by annotation", spec: annotated("pid-file", dir+"/a.pid"), path: dir + "/a.pid"},
		{name: "by option", spec: goodSpec(), o: options.Options{Settings: map[string]string{"PidFile": dir + "/{namespace}-{id}.pid"}}, path: dir + "/ns-c1.pid"},
		{name: "in place of one that was left", spec: annotated("pid-file", dir+"/b.pid"), path: dir + "/b.pid", there: "77\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.there != "" {
				must(t, os.WriteFile(tc.path, []byte(tc.there), 0o600))
			}
			s := newManager(t, &fakeEngine{})
			_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, tc.spec), Options: allowing(tc.o)})
			must(t, err)
			wantFile(t, tc.path, "4321")
			if got := files(t, dir); got != filepath.Base(tc.path) {
				t.Errorf("the directory has %s", got)
			}
			_, err = s.Delete(t.Context(), "c1", "")
			must(t, err)
			wantFile(t, tc.path, "")
		})
	}
}

func TestPidFile_OfARestoredContainerComesWithInit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	s := newManager(t, &fakeEngine{})
	c, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, annotated("pid-file", path)), Checkpoint: "/image", Options: allowing(options.Options{})})
	must(t, err)
	wantFile(t, path, "")
	must(t, c.Init().Start(t.Context()))
	wantFile(t, path, "4321")
}

func TestPidFile_OfAnotherStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	s := newManager(t, &fakeEngine{})
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, annotated("pid-file", path)), Options: allowing(options.Options{})})
	must(t, err)
	must(t, os.WriteFile(path, []byte("99"), 0o600))
	_, err = s.Delete(t.Context(), "c1", "")
	must(t, err)
	wantFile(t, path, "99")
}

func TestPidFile_OfADeadShimIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	bundle := newBundle(t, annotated("pid-file", path))
	_, err := newManager(t, &fakeEngine{}).Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: allowing(options.Options{})})
	must(t, err)
	_, _, err = cleanUp(t, bundle)
	must(t, err)
	wantFile(t, path, "")
}

// A shim of a release before extensions has the path in a field of its own.
func TestPidFile_OfADeadShimOfAFormerReleaseIsRemoved(t *testing.T) {
	bundle := newBundle(t, goodSpec())
	path := filepath.Join(t.TempDir(), "pid")
	must(t, os.WriteFile(path, []byte("4321"), 0o600))
	must(t, os.WriteFile(filepath.Join(bundle, "shim.json"), []byte(`{"Root": "/run/r", "Pid": 4321, "PidFile": "`+path+`"}`), 0o600))
	_, _, err := cleanUp(t, bundle)
	must(t, err)
	wantFile(t, path, "")
}

// The shim died after it wrote the file and before it recorded the pid.
func TestPidFile_OfAHalfMadeContainerIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	bundle := newBundle(t, annotated("pid-file", path))
	must(t, cleanup.State{Root: "/run/r", Extensions: map[string]json.RawMessage{"pid-file": json.RawMessage(strconv.Quote(path))}}.Write(bundle))
	init := exec.Command("true")
	must(t, init.Run())
	must(t, os.WriteFile(path, []byte(strconv.Itoa(init.Process.Pid)), 0o600))
	_, _, err := cleanUp(t, bundle)
	must(t, err)
	wantFile(t, path, "")
}

func TestPidFile_RefusesPaths(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/passwd", []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o600))
	must(t, os.WriteFile(dir+"/long", []byte("12345678901\n"), 0o600))
	must(t, os.WriteFile(dir+"/empty", nil, 0o600))
	must(t, os.WriteFile(dir+"/pid", []byte("1"), 0o600))
	must(t, os.Symlink("pid", dir+"/link"))
	for path, why := range map[string]string{
		"": "absolute", "pid": "absolute", "/": "absolute", dir + "/../x": "absolute", dir + "/": "absolute",
		dir + "/none/pid": "directory that is there", dir + "/passwd/pid": "directory that is there",
		dir: "a pid file that was left", dir + "/passwd": "a pid file that was left", dir + "/long": "a pid file that was left", dir + "/empty": "a pid file that was left", dir + "/link": "a pid file that was left",
	} {
		bundle := newBundle(t, annotated("pid-file", path))
		_, err := newManager(t, &fakeEngine{}).Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: allowing(options.Options{})})
		wantInvalid(t, err, "pid-file", `"`+path+`"`, why)
		if got := files(t, bundle); got != "config.json rootfs" {
			t.Errorf("the bundle has %s", got)
		}
	}
	if got := files(t, dir); got != "empty link long passwd pid" {
		t.Errorf("the directory has %s", got)
	}
	_, err := newManager(t, &fakeEngine{}).Create(t.Context(), CreateRequest{ID: "c1", Bundle: newBundle(t, goodSpec()), Options: options.Options{Settings: map[string]string{"PidFile": dir + "/one"}}})
	wantInvalid(t, err, "runtime options: PidFile", "{id}")
}

// The directory goes between the check and the write.
func TestPidFile_ThatCannotBeWrittenFailsTheCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	must(t, os.Mkdir(dir, 0o700))
	engine := &fakeEngine{create: func(process.Config) error { return os.Remove(dir) }}
	bundle := newBundle(t, annotated("pid-file", dir+"/pid"))
	s := newManager(t, engine)
	_, err := s.Create(t.Context(), CreateRequest{ID: "c1", Bundle: bundle, Options: allowing(options.Options{})})
	wantText(t, err, "pid file", dir)
	if !engine.runtimes[0].init.waited.Load() {
		t.Error("init was not collected")
	}
	if got := files(t, bundle); got != "config.json rootfs" {
		t.Errorf("the bundle has %s", got)
	}
}
