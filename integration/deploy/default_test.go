// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// The runtime of all pods that name none, as docs/kubernetes.md configures it. The pod is of the kind that the system
// has on each node: in the node's namespaces, with its privileges.
func TestDefaultRuntime_RunsPodsOfTheSystem(t *testing.T) {
	for _, series := range []string{"1.6", "1.7", "2.4"} {
		t.Run("containerd "+series, func(t *testing.T) {
			n := newNode(t, release(t, series), withPods)
			n.want(0, nil, "install")
			n.makeDefault()
			if err := n.restartContainerd(); err != nil {
				t.Fatal(err)
			}
			n.runSystemPod()
			// The handler is the node's default now: without it containerd would come back without CRI.
			before := n.files()
			n.want(3, nil, "uninstall")
			n.wantFiles(before)
			n.wantCRI()
		})
	}
}

// withPods is basic for a node that runs pods. Pause containers want an OOM score below containerd's, which not every
// root may give.
func withPods(n *node) string {
	const restrict = "restrict_oom_score_adj = true\n"
	text := strings.ReplaceAll(basic(n), "shim.test/pause:1", harness.PauseImage)
	if strings.HasPrefix(n.c.Version, "1.") {
		return strings.Replace(text, "    sandbox_image", "    "+restrict+"    sandbox_image", 1)
	}
	imports := fmt.Sprintf("version = 3\nimports = [%q]\n", n.conf+"/*.toml") // as containerd's own default does
	text = strings.Replace(text, "version = 3\n", imports, 1)
	return text + "[plugins.\"io.containerd.cri.v1.runtime\"]\n" + restrict
}

// makeDefault does what the page says.
func (n *node) makeDefault() {
	n.Helper()
	for _, text := range blocks(n.T, "toml") {
		first, rest, _ := strings.Cut(text, "\n")
		switch old := strings.HasPrefix(n.c.Version, "1."); {
		case !strings.Contains(text, "default_runtime_name"):
		case !old && strings.HasSuffix(first, "/conf.d/default-runtime.toml"):
			n.write(filepath.Join(n.conf, filepath.Base(first)), text)
			return
		case old && strings.HasSuffix(first, "/config.toml"):
			n.write(n.config, n.read(n.config)+rest)
			return
		}
	}
	n.Fatalf("docs/kubernetes.md does not say how containerd %s gets a default runtime", n.c.Version)
}

// runSystemPod runs a pod without a handler by CRI.
func (n *node) runSystemPod() {
	n.Helper()
	const k8s = "k8s.io"
	name := fmt.Sprintf("%s%d", harness.NamespacePrefix, os.Getpid())
	bundles := filepath.Join(n.c.State, "io.containerd.runtime.v2.task", k8s)
	scope := harness.Scope{Namespace: name, Address: n.c.Address, Dirs: []string{n.c.Sockets, bundles}, MountsIn: bundles}
	defer scope.Check(n)
	ctx, cancel := context.WithTimeout(n.Context(), harness.Slow(2*time.Minute))
	defer cancel()
	cl := n.client()
	for _, pack := range []func(harness.Env) (io.Reader, error){harness.ImageTar, harness.PauseTar} {
		image, err := pack(n.c.Env)
		if err == nil {
			_, err = cl.Import(namespaces.WithNamespace(ctx, k8s), image)
		}
		if err != nil {
			n.Fatal(err)
		}
	}
	images := runtime.NewImageServiceClient(cl.Conn().(grpc.ClientConnInterface))
	for _, name := range []string{harness.Image, harness.PauseImage} {
		harness.Eventually(n, "CRI knows "+name, func() error {
			r, err := images.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: name}})
			if err == nil && r.GetImage() == nil {
				err = errors.New("it does not")
			}
			return err
		})
	}
	pods := runtime.NewRuntimeServiceClient(cl.Conn().(grpc.ClientConnInterface))
	nodes := &runtime.NamespaceOption{
		Network: runtime.NamespaceMode_NODE, Pid: runtime.NamespaceMode_NODE, Ipc: runtime.NamespaceMode_NODE,
	}
	config := &runtime.PodSandboxConfig{
		Metadata:     &runtime.PodSandboxMetadata{Name: "proxy", Uid: "1", Namespace: "kube-system"},
		LogDirectory: n.TempDir(),
		Linux: &runtime.LinuxPodSandboxConfig{
			CgroupParent:    "/" + name,
			SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: nodes, Privileged: true},
		},
	}
	pod, err := pods.RunPodSandbox(ctx, &runtime.RunPodSandboxRequest{Config: config})
	if err != nil {
		n.Fatal(err)
	}
	defer func() {
		if _, err := pods.StopPodSandbox(ctx, &runtime.StopPodSandboxRequest{PodSandboxId: pod.GetPodSandboxId()}); err != nil {
			n.Error(err)
		}
		if _, err := pods.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: pod.GetPodSandboxId()}); err != nil {
			n.Error(err)
		}
		_ = os.Remove(harness.StateRoot(k8s)) // which others of the machine may use
	}()
	shims := harness.ShimsOf(n.c.Address, "")
	if len(shims) != 1 {
		n.Fatalf("shims are %v, want one", shims)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", shims[0].Pid)); err != nil || filepath.Base(exe) != shimName {
		n.Errorf("the pod's shim is %q, %v, want %s", exe, err, shimName)
	}
	container, err := pods.CreateContainer(ctx, &runtime.CreateContainerRequest{
		PodSandboxId: pod.GetPodSandboxId(), SandboxConfig: config,
		Config: &runtime.ContainerConfig{
			Metadata: &runtime.ContainerMetadata{Name: "c"}, Image: &runtime.ImageSpec{Image: harness.Image},
			Command: []string{"sleep", "1000"}, LogPath: "c.log",
			Linux: &runtime.LinuxContainerConfig{
				Resources: &runtime.LinuxContainerResources{},
				SecurityContext: &runtime.LinuxContainerSecurityContext{
					NamespaceOptions: nodes, Privileged: true,
				},
			},
		},
	})
	if err != nil {
		n.Fatal(err)
	}
	if _, err := pods.StartContainer(ctx, &runtime.StartContainerRequest{ContainerId: container.GetContainerId()}); err != nil {
		n.Fatal(err)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		n.Fatal(err)
	}
	answer, err := pods.ExecSync(ctx, &runtime.ExecSyncRequest{
		ContainerId: container.GetContainerId(), Cmd: []string{"sh", "-c", "readlink /proc/self/ns/net; test -e /dev/kmsg && echo devices"},
	})
	if want := own + "\ndevices\n"; err != nil || string(answer.GetStdout()) != want {
		n.Errorf("the container says %q, %v, want %q", answer.GetStdout(), err, want)
	}
}
