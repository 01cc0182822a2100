// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/internal/hungfs"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
)

// leave binds a socket at /vol/sub/s of a root, whose /vol is a volume, and returns what is left to be removed by
// another process.
func leave(t *testing.T, root string) (*Sockets, []File) {
	t.Helper()
	testx.Must(t, os.MkdirAll(filepath.Join(root, "vol/sub"), 0o700))
	s, err := opened(t, "unix:///vol/sub/s", Network{}, root)
	testx.Must(t, err)
	spec := &specs.Spec{Mounts: []specs.Mount{{Destination: "/vol", Source: root + "/vol"}}}
	return s, onHost(addresses(t, "unix:///vol/sub/s"), &process.Config{Spec: spec})
}

// bindAt leaves the file of a socket, as a program does that ends.
func bindAt(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func TestRemoveLeft_RemovesOnlyTheSameSocketThatNobodyHasOpen(t *testing.T) {
	const dir, file = "root/vol/sub", "root/vol/sub/s"
	for _, tt := range []struct {
		name   string
		open   bool // init lives
		change func() error
		stays  []string // below the working directory, other than directories
		err    string
	}{
		{"nothing happened", false, func() error { return nil }, nil, ""},
		{"a process has it open", true, func() error { return nil }, []string{file}, ""},
		{"it is gone", false, func() error { return os.Remove(file) }, nil, ""},
		{"it has another name", false, func() error { return os.Rename(file, dir+"/t") }, []string{dir + "/t"}, ""},
		{"a file is in its place", false, func() error {
			return errors.Join(os.Remove(file), os.WriteFile(file, nil, 0o600))
		}, []string{file}, ""},
		{"another socket is in its place", false, func() error {
			return errors.Join(os.Remove(file), bindAt(file))
		}, nil, ""},
		{"a link is in its place", false, func() error {
			return errors.Join(os.Rename(file, "host/s"), os.Symlink("../../../host/s", file))
		}, []string{"host/s", file}, ""},
		{"its directory is gone", false, func() error {
			return errors.Join(os.Rename(dir, "host/sub"))
		}, []string{"host/sub/s"}, ""},
		{"a link is in the place of its directory", false, func() error {
			return errors.Join(os.Rename(dir, "host/sub"), os.Symlink("../../host/sub", dir))
		}, []string{"host/sub/s", dir}, "too many levels of symbolic links"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir()) // an address has room for 108 bytes
			testx.Must(t, errors.Join(os.Mkdir("root", 0o700), os.Mkdir("host", 0o700)))
			here, err := os.Getwd()
			testx.Must(t, err)
			s, list := leave(t, filepath.Join(here, "root"))
			if len(list) != 1 {
				t.Fatalf("left = %+v, want one", list)
			}
			if !tt.open {
				s.Close()
			}
			testx.Must(t, tt.change())
			for range 2 {
				err = removeLeft(list)
				if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("removeLeft = %v, want %q in it", err, tt.err)
				}
			}
			if got := filesBelow(t, "."); !cmp.Equal(got, tt.stays) {
				t.Errorf("files = %q, want %q", got, tt.stays)
			}
		})
	}
}

// filesBelow lists all but directories.
func filesBelow(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	testx.Must(t, err)
	return list
}

func TestOnHost_FindsTheInnermostMount(t *testing.T) {
	for _, tt := range []struct {
		name   string
		mounts []specs.Mount
		want   string
	}{
		{"no volume", nil, "/root vol/sub s"},
		{"a volume", []specs.Mount{{Destination: "/vol", Source: "/v"}}, "/v sub s"},
		{"a volume in the bundle", []specs.Mount{{Destination: "/vol/", Source: "v"}}, "/bundle/v sub s"},
		{"a volume mounted over another", []specs.Mount{{Destination: "/vol", Source: "/u"}, {Destination: "/vol", Source: "/v"}}, "/v sub s"},
		{"a volume in another", []specs.Mount{{Destination: "/vol/sub", Source: "/u"}, {Destination: "/vol", Source: "/v"}}, "/u . s"},
		{"volumes elsewhere", []specs.Mount{{Destination: "/vo", Source: "/u"}, {Destination: "/vol/sub/s", Source: "/v"}}, "/root vol/sub s"},
	} {
		c := &process.Config{Bundle: "/bundle", Rootfs: "/root", Spec: &specs.Spec{Mounts: tt.mounts}}
		got := onHost(addresses(t, "tcp://0.0.0.0:1 unix:///vol/sub/s"), c)
		if len(got) != 1 || got[0].Volume+" "+got[0].Dir+" "+got[0].Name != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// In a delete command, and in Delete, which has the lock of its container meanwhile.
func TestRemove_DoesNotWaitForAVolumeThatHangs(t *testing.T) {
	root := t.TempDir()
	s, list := leave(t, root)
	s.Close()
	hungfs.Mount(t, root+"/vol")
	record, err := json.Marshal(list)
	testx.Must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h := &hook{config: &process.Config{ID: "c1"}, files: list}
		if err := errors.Join(cleanUp(t.Context(), extension.Left{Record: record}), h.Removed(), h.Removed()); err != nil {
			t.Errorf("cleanUp, Removed twice = %v", err)
		}
	}()
	testx.Within(t, "removing", ended)
}
