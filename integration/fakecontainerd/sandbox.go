// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd

import (
	"context"
	"os"
	"path/filepath"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is the Sandbox service of a shim, asked in the class of errors that containerd would see.
type Sandbox struct{ sandbox.TTRPCSandboxService }

// Sandbox calls the Sandbox service over the connection of t.
func (t Task) Sandbox() Sandbox { return Sandbox{sandbox.NewTTRPCSandboxClient(t.client)} }

// SandboxBundle makes the bundle of a sandbox as containerd's controller does: in a root of its own, without a
// configuration.
func (f *Fake) SandboxBundle(id string) *Bundle {
	f.Helper()
	b := &Bundle{ID: id, Path: filepath.Join(f.Dir, "io.containerd.sandbox.controller.v1.shim", f.Namespace, id)}
	f.Must(os.MkdirAll(filepath.Join(b.Path, "rootfs"), 0o711), "bundle")
	f.holdLog(b)
	return b
}

// PodConfig is what CRI sends of a pod, in its own message. All namespaces but the pod's IPC are the host's.
func (f *Fake) PodConfig(change func(*cri.PodSandboxConfig)) *anypb.Any {
	f.Helper()
	c := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "pod", Uid: "uid", Namespace: "default"},
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{
				Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD,
			},
		}},
	}
	if change != nil {
		change(c)
	}
	value, err := proto.Marshal(c)
	f.Must(err, "pod configuration")
	return &anypb.Any{TypeUrl: "runtime.v1.PodSandboxConfig", Value: value}
}

// Start calls StartSandbox.
func (s Sandbox) Start(ctx context.Context, id string) error {
	_, err := s.StartSandbox(ctx, &sandbox.StartSandboxRequest{SandboxID: id})
	return err
}

// Shutdown calls ShutdownSandbox.
func (s Sandbox) Shutdown(ctx context.Context, id string) error {
	_, err := s.ShutdownSandbox(ctx, &sandbox.ShutdownSandboxRequest{SandboxID: id})
	return err
}

// Pod starts a shim for a sandbox, creates the sandbox and starts it.
func (f *Fake) Pod(id string, change func(*cri.PodSandboxConfig)) (*Shim, *Bundle) {
	f.Helper()
	b := f.SandboxBundle(id)
	s := f.Shim(b)
	f.Must(s.CreateSandbox(b, change), "create sandbox")
	f.Must(s.Sandbox().Start(f.Ctx, id), "start sandbox")
	return s, b
}

// CreateSandbox creates the sandbox of a bundle, whose configuration change alters.
func (s *Shim) CreateSandbox(b *Bundle, change func(*cri.PodSandboxConfig)) error {
	_, err := s.Sandbox().CreateSandbox(s.fake.Ctx, &sandbox.CreateSandboxRequest{
		SandboxID: b.ID, BundlePath: b.Path, Options: s.fake.PodConfig(change),
	})
	return err
}
