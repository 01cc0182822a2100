// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/hungfs"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// fakeInit is an init with the root file system of this process.
type fakeInit struct{ process.Handle }

func (fakeInit) Pid() int { return os.Getpid() }

func TestHook_DoesNotWaitForAVolumeThatHangs(t *testing.T) {
	dir := t.TempDir()
	first, volume, last := filepath.Join(dir, "a"), filepath.Join(dir, "volume"), filepath.Join(dir, "z")
	testx.Must(t, os.Mkdir(volume, 0o700))
	hungfs.Mount(t, volume)
	setting := settings.Value{Key: "the key", Text: "unix://" + first + " unix://" + volume + "/in/s unix://" + last}
	spec := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}}}
	h := &hook{setting: setting, list: addresses(t, setting.Text)}
	config := process.Config{ID: "c1", Bundle: dir, Rootfs: "/", Spec: spec}
	if spec.Process = new(specs.Process); h.Prepare(t.Context(), &config) != nil {
		t.Fatal("Prepare failed")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := h.Created(t.Context(), nil, fakeInit{}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the key") {
			t.Errorf("Created = %v, want %v and the setting", err, context.DeadlineExceeded)
		}
	}()
	testx.Within(t, "Created", ended)
	testx.Must(t, h.Removed())
	testx.Must(t, unix.Unmount(volume, unix.MNT_FORCE|unix.MNT_DETACH)) // the volume answers, with an error
	testx.Eventually(t, "that the first socket's file is removed", func() bool { return !testx.Exists(first) })
	if testx.Exists(last) {
		t.Error("the last socket is bound")
	}
}

// What was given up goes on when the volume answers. By then the descriptors may be those of other files.
func TestBind_FailsAtTheNextAddressOnceTheSocketsAreClosed(t *testing.T) {
	s, _, err := Open(addresses(t, "unix:///a"), Network{})
	testx.Must(t, err)
	s.Close()
	root := t.TempDir()
	if _, err := Bind(addresses(t, "unix:///a"), s, root, owner()); err == nil {
		t.Error("Bind of a socket that is closed worked")
	}
}
