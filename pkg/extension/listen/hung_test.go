// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/hungfs"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// fakeInit is an init with the root file system of this process.
type fakeInit struct{ process.Handle }

func (fakeInit) Pid() int { return os.Getpid() }

func TestHook_DoesNotWaitForAVolumeThatHangs(t *testing.T) {
	dir := t.TempDir()
	first, volume, last := filepath.Join(dir, "a"), filepath.Join(dir, "volume"), filepath.Join(dir, "z")
	if err := os.Mkdir(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	hungfs.Mount(t, volume)
	setting := settings.Value{Key: "the key", Text: "unix://" + first + " unix://" + volume + "/in/s unix://" + last}
	spec := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}}}
	h := &hook{setting: setting, list: addresses(t, setting.Text)}
	config := process.Config{ID: "c1", Bundle: dir, Rootfs: dir, Spec: spec}
	if spec.Process = new(specs.Process); h.Prepare(t.Context(), &config) != nil {
		t.Fatal("Prepare failed")
	}
	ended := make(chan error, 1)
	go func() { ended <- h.Created(t.Context(), nil, fakeInit{}) }()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the key") {
			t.Errorf("Created = %v, want %v and the setting", err, context.DeadlineExceeded)
		}
	case <-time.After(3 * bindTimeout):
		t.Fatal("Created hangs")
	}
	if err := h.Removed(); err != nil {
		t.Errorf("Removed = %v", err)
	}
	var d net.Dialer
	if _, err := d.DialContext(t.Context(), "unix", first); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connect to the first socket = %v, want %v", err, unix.ECONNREFUSED)
	}
	if err := unix.Unmount(volume, unix.MNT_FORCE|unix.MNT_DETACH); err != nil { // the volume answers, with an error
		t.Fatal(err)
	}
	for _, path := range []string{first, last} {
		ticks := time.NewTicker(time.Millisecond)
		for ; ; <-ticks.C { // go test has a limit
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
				break
			}
		}
		ticks.Stop()
	}
}

// What was given up goes on when the volume answers. By then the descriptors may be those of other files.
func TestBind_FailsAtTheNextAddressOnceTheSocketsAreClosed(t *testing.T) {
	s, err := Open(addresses(t, "unix:///a"), Network{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	root := t.TempDir()
	if _, err := Bind(addresses(t, "unix:///a"), s, root, owner()); err == nil {
		t.Error("Bind of a socket that is closed worked")
	}
}
