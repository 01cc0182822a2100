// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"

	"sandbox.internal/shim/integration/harness"
)

// Handlers of a Daemon, which a pod names as its runtime class does.
const (
	PodSandbox = "podsandbox" // containerd's default: a pause container is the sandbox
	Shim       = "shim"       // the shim is the sandbox, there is no pause container
	ShimLimits = "shimlimits" // as Shim, with a table of options that bounds what pods ask for
)

// Bridge is the interface at which all pods of a Daemon are.
const Bridge = "shim-test0"

// DrainTimeout is how long containerd waits for output of an ExecSync that other processes hold. Docker waits 2 s.
const DrainTimeout = 3 * time.Second

// pluginDirs is where Debian has CNI's plugins, and where most others have them.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

// cniConf is the network of the pods: a bridge without a way out. The version is the newest
// that the plugins of Debian 11 know.
const cniConf = `{
  "cniVersion": "0.4.0",
  "name": "shim-test",
  "plugins": [
    {
      "type": "bridge", "bridge": %q, "isGateway": true, "hairpinMode": true,
      "ipam": {
        "type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]
      }
    }
  ]
}
`

// writeCNI writes the network's configuration below dir.
func writeCNI(dir string) error {
	conf := filepath.Join(dir, "net.d")
	if err := os.Mkdir(conf, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(conf, "10-shim.conflist"),
		fmt.Appendf(nil, cniConf, Bridge, filepath.Join(dir, "ipam")), 0o644)
}

// Config is containerd's without runtimes, of which the one called defaultRuntime is that of pods without a class: with
// CRI and NRI and nothing that writes outside of the directory of c. Pause containers want an OOM score below
// containerd's, which not every root may give.
func Config(c *harness.Containerd, defaultRuntime string) []byte {
	snapshotter := "overlayfs"
	probe := filepath.Join(c.Dir, "probe")
	if err := overlayutils.Supported(probe); err != nil {
		snapshotter = "native"
	}
	_ = os.RemoveAll(probe) // it goes with the directory at the latest
	_, noSELinux := os.Stat("/sys/fs/selinux/enforce")
	bin := fmt.Sprintf("bin_dirs = [%q, %q]", pluginDirs[0], pluginDirs[1])
	if strings.HasPrefix(c.Version, "2.0.") { // it takes one
		bin = fmt.Sprintf("bin_dir = %q", pluginDirs[0])
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `version = 3
root = %q
state = %q
imports = []
disabled_plugins = [%s]
[grpc]
  address = %q
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = %q
[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true
[plugins."io.containerd.nri.v1.nri"]
  socket_path = %q
  plugin_path = %q
  plugin_config_path = %q
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = %q
  pinned_images = {sandbox = %q}
[plugins."io.containerd.cri.v1.runtime"]
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = []
  restrict_oom_score_adj = true
  enable_selinux = %t
  drain_exec_sync_io_timeout = "%v"
  [plugins."io.containerd.cri.v1.runtime".cni]
    %s
    conf_dir = %q
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = %q
`, filepath.Join(c.Dir, "root"), c.State, harness.UnusedPlugins, c.Address, c.Sockets,
		NRISocket(c), filepath.Join(c.Dir, "nri"), filepath.Join(c.Dir, "nri"),
		snapshotter, harness.PauseImage, noSELinux == nil, harness.Slow(DrainTimeout),
		bin, filepath.Join(c.Dir, "net.d"), defaultRuntime)
	return b.Bytes()
}

// Configured is Config with the handlers.
func Configured(c *harness.Containerd) []byte { return ConfiguredWith(harness.PodsPerShim())(c) }

// ConfiguredWith is Configured where all handlers have an option of our shim, or "".
func ConfiguredWith(option string) func(*harness.Containerd) []byte {
	return func(c *harness.Containerd) []byte { return configured(c, option) }
}

func configured(c *harness.Containerd, option string) []byte {
	b := bytes.NewBuffer(Config(c, PodSandbox))
	const limit = "MaxShmSize = \"128Mi\""
	handlers := []struct{ name, text, options string }{
		{PodSandbox, "sandboxer = \"podsandbox\"\n", ""},
		{Shim, "sandboxer = \"shim\"\ndisable_pause_image_pull = true\n", ""},
		{ShimLimits, "sandboxer = \"shim\"\ndisable_pause_image_pull = true\n", limit},
	}
	if c.Env.Runtime != harness.Ours { // whose options other shims do not know
		handlers = handlers[:len(handlers)-1]
	}
	for _, h := range handlers {
		const annotations = "pod_annotations = [\"io.containerd.sandbox.v1/*\"]\n" +
			"container_annotations = [\"io.containerd.sandbox.v1/*\"]\n"
		fmt.Fprintf(b, "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.%s]\nruntime_type = %q\n%s%s",
			h.name, c.Env.Runtime, annotations, h.text)
		if options := strings.Trim(h.options+", "+option, ", "); options != "" {
			fmt.Fprintf(b, "options = {%s}\n", options)
		}
	}
	return b.Bytes()
}

// NRISocket is where plugins of NRI reach a containerd.
func NRISocket(c *harness.Containerd) string { return filepath.Join(c.Dir, "nri.sock") }
