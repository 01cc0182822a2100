// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// Daemon is a containerd that serves CRI and has the images of package harness.
type Daemon struct {
	*harness.Containerd
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient

	isolation *Isolation
	conn      *grpc.ClientConn
	loaded    bool // the images
}

// NewDaemon prepares a containerd and starts nothing.
func NewDaemon(env harness.Env, w *Isolation) (*Daemon, error) {
	return NewConfigured(env, w, Configured)
}

// NewConfigured is NewDaemon with another configuration than the tests of CRI need.
func NewConfigured(env harness.Env, w *Isolation, config func(*harness.Containerd) []byte) (*Daemon, error) {
	if err := findPlugins(); err != nil {
		return nil, err
	}
	c, err := harness.NewConfigured(env, config)
	if err != nil {
		return nil, err
	}
	d := &Daemon{Containerd: c, isolation: w}
	// The users of a pod's own come by here on the way to their root file system.
	if err := errors.Join(os.Chmod(c.Dir, 0o711), writeCNI(c.Dir)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// The connection dials when it is used, and anew after a restart.
	d.conn, err = grpc.NewClient("unix://"+c.Address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	d.Runtime, d.Images = runtimeapi.NewRuntimeServiceClient(d.conn), runtimeapi.NewImageServiceClient(d.conn)
	return d, nil
}

// findPlugins returns an error that says what to install when CNI's plugins are absent.
func findPlugins() error {
	for _, dir := range pluginDirs {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no CNI plugins in %q: integration/cri/deps.sh installs them", pluginDirs)
}

// Start starts containerd and returns when pods can be run.
func (d *Daemon) Start(ctx context.Context) error {
	if err := d.Containerd.Start(ctx); err != nil {
		return err
	}
	if err := d.load(ctx); err != nil {
		return err
	}
	return harness.Poll(func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		status, err := d.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, c := range status.GetStatus().GetConditions() {
			if !c.GetStatus() && c.GetType() != "ContainerdHasNoDeprecationWarnings" {
				return fmt.Errorf("condition %s: %s: %s", c.GetType(), c.GetReason(), c.GetMessage())
			}
		}
		return nil
	})
}

// load imports the images, once, and returns when CRI has seen them.
func (d *Daemon) load(ctx context.Context) error {
	if d.loaded {
		return nil
	}
	cl, err := d.Client()
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }() // it has done what it was for
	ctx = namespaces.WithNamespace(ctx, "k8s.io")
	for name, pack := range map[string]func() (io.Reader, error){
		harness.Image:       func() (io.Reader, error) { return harness.ImageTar(d.Env) },
		harness.PauseImage:  func() (io.Reader, error) { return harness.PauseTar(d.Env) },
		harness.VolumeImage: harness.VolumeTar,
	} {
		archive, err := pack()
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		if _, err := cl.Import(ctx, archive); err != nil {
			return fmt.Errorf("import %s: %w", name, err)
		}
		if err := harness.Poll(func() error {
			status, err := d.Images.ImageStatus(ctx,
				&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			if err == nil && status.GetImage() == nil {
				err = fmt.Errorf("CRI does not know the image %s", name)
			}
			return err
		}); err != nil {
			return err
		}
	}
	d.loaded = true
	return nil
}

// Addresses lists the addresses that pods have.
func (d *Daemon) Addresses() ([]string, error) {
	list, err := os.ReadDir(filepath.Join(d.Dir, "ipam", "shim-test"))
	var addresses []string
	for _, e := range list {
		if _, err := netip.ParseAddr(e.Name()); err == nil { // beside a lock, and what was given last
			addresses = append(addresses, e.Name())
		}
	}
	if errors.Is(err, fs.ErrNotExist) { // no pod has had one yet
		err = nil
	}
	return addresses, err
}

// Close ends containerd and removes what it had.
func (d *Daemon) Close() error { return errors.Join(d.conn.Close(), d.Containerd.Close()) }

// Scope is everything that pods of the daemon make, whose cgroup parent is at or below "/"+name. Nothing of it is there
// when there is no pod.
func (d *Daemon) Scope(name string) harness.Scope {
	s := harness.Scope{
		Namespace: name,
		Address:   d.Address,
		Dirs: []string{
			d.isolation.States(), d.isolation.Netns(),
			filepath.Join(d.Dir, "root", "io.containerd.runtime.v2.task", "k8s.io"),
		},
		MountsIn: d.State,
	}
	for _, dir := range []string{
		"io.containerd.runtime.v2.task/k8s.io", "io.containerd.sandbox.controller.v1.shim/k8s.io",
		"io.containerd.grpc.v1.cri/netns", "io.containerd.grpc.v1.cri/sandboxes",
		"io.containerd.grpc.v1.cri/containers",
	} {
		s.Dirs = append(s.Dirs, filepath.Join(d.State, dir))
	}
	for _, dir := range []string{"sandboxes", "containers"} {
		s.Dirs = append(s.Dirs, filepath.Join(d.Dir, "root", "io.containerd.grpc.v1.cri", dir))
	}
	if d.Env.Runtime == harness.Ours { // the runc shim leaves its socket when it is killed
		s.Dirs = append(s.Dirs, d.Sockets)
	}
	return s
}
