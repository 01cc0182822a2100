// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/shim/integration/harness"
)

// sysctls are what a kubelet sets, and refuses to run without if it may not.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0",
	"kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// bootID is by what a kubelet finds out that the machine was booted again.
const bootID = "kernel/random/boot_id"

// kubeletScript is run in a mount namespace of its own, where the machine's sysctls are as a kubelet wants them. Mounts
// elsewhere are seen by all.
//
// cAdvisor, which has the statistics of a pod's network, looks for containerd's socket at the default path alone. Nobody
// else sees that mount, which would hide the states of runc's containers.
const kubeletScript = `mount --make-private /proc
cd "$1"
find . -type f | while read -r file; do mount --bind "$file" "/proc/sys/$file"; done
mkdir -p /run/containerd
for dir in / /run /run/containerd; do mount --make-slave "$dir" 2>/dev/null || :; done
mount -t tmpfs -o mode=755 kubelet /run/containerd
touch /run/containerd/containerd.sock
mount --bind "$2" /run/containerd/containerd.sock
shift 2
exec "$@"
`

// kubeletDir is the kubelet's own, with a bound that pods can reach.
func (c *cluster) kubeletDir() string { return filepath.Join(c.Dir, "kubelet") }

// kubeletDirSize is for all pods of a group of cases.
const kubeletDirSize = "1g"

// prepareKubelet makes what a kubelet reads.
func (c *cluster) prepareKubelet() error {
	if err := syscall.Mount("tmpfs", c.kubeletDir(), "tmpfs", 0, "mode=755,size="+kubeletDirSize); err != nil {
		return fmt.Errorf("mount the kubelet's directory: %w", err)
	}
	for file, value := range sysctls {
		if err := c.setSysctl(file, value); err != nil {
			return err
		}
	}
	return errors.Join(c.setSysctl(bootID, uuid.NewString()), c.configureKubelet(nil))
}

// setSysctl is what a kubelet sees from its next start on.
func (c *cluster) setSysctl(file, value string) error {
	file = filepath.Join(c.dir, "sysctl", file)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(value+"\n"), 0o644)
}

// configureKubelet writes the kubelet's configuration, with further settings.
func (c *cluster) configureKubelet(more map[string]any) error {
	settings := map[string]any{
		"apiVersion":                  "kubelet.config.k8s.io/v1beta1",
		"kind":                        "KubeletConfiguration",
		"failCgroupV1":                false,
		"authentication":              map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":               map[string]any{"mode": "AlwaysAllow"},
		"cgroupDriver":                "cgroupfs",
		"cgroupRoot":                  "/" + scopeName,
		"containerRuntimeEndpoint":    "unix://" + c.Address,
		"volumePluginDir":             filepath.Join(c.dir, "plugins"),
		"resolvConf":                  filepath.Join(c.dir, "resolv.conf"),
		"protectKernelDefaults":       true,
		"makeIPTablesUtilChains":      false,
		"failSwapOn":                  false,
		"oomScoreAdj":                 0,
		"syncFrequency":               "5s", // so often it looks at volumes
		"nodeStatusUpdateFrequency":   "5s",
		"kubeAPIQPS":                  200,
		"kubeAPIBurst":                400,
		"podPidsLimit":                512,
		"volumeStatsAggPeriod":        "5s",
		"imageGCHighThresholdPercent": 100, // the machine's disk is not the test's
		"evictionHard": map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "1%", "imagefs.available": "1%",
		},
		"featureGates":                     map[string]bool{"ContainerStopSignals": true},
		"evictionPressureTransitionPeriod": "1s",
		"allowedUnsafeSysctls":             []string{"net.core.somaxconn", "kernel.msg*"},
	}
	maps.Copy(settings, more)
	text, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, "kubelet.json"), text, 0o600)
}

func (c *cluster) startKubelet(context.Context) error {
	return c.start("kubelet", "unshare", "--mount", "--propagation", "unchanged", "sh", "-euc", kubeletScript, "sh",
		filepath.Join(c.dir, "sysctl"), c.Address, c.programs.Kubelet, "--config", filepath.Join(c.dir, "kubelet.json"),
		"--kubeconfig", filepath.Join(c.dir, "kubeconfig"), "--root-dir", c.kubeletDir(),
		"--cert-dir", filepath.Join(c.dir, "kubelet-pki"), "--node-ip", address, "--hostname-override", node)
}

func (c *cluster) withoutKubelet(ctx context.Context, work func() error) error {
	return errors.Join(c.end(syscall.SIGTERM), work(), c.startKubelet(ctx), c.awaitNode(ctx))
}

// awaitNode returns when the kubelet has said of late that pods can be run.
func (c *cluster) awaitNode(ctx context.Context) error {
	since := time.Now().Truncate(time.Second)
	return harness.Poll(func() error {
		if err := c.ended(); err != nil {
			return err
		}
		out, err := c.kubectl(ctx, "get", "node", node, "-o",
			`jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{end}`)
		if err != nil {
			return err
		}
		status, text, _ := strings.Cut(out, " ")
		at, err := time.Parse(time.RFC3339, text)
		if err == nil && (status != "True" || at.Before(since)) {
			err = fmt.Errorf("the node is %s at %v", status, at)
		}
		return err
	})
}

// install installs a shim with the installer of this project, which restarts containerd.
func (c *cluster) install(ctx context.Context, binary string) error {
	ask, answer, restart := filepath.Join(c.dir, "ask"), filepath.Join(c.dir, "answer"), filepath.Join(c.dir, "restart")
	script := fmt.Sprintf("#!/bin/sh\n: >%s\nuntil [ -e %s ]; do sleep 0.1; done\nrm %s\n", ask, answer, answer)
	if err := os.WriteFile(restart, []byte(script), 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, harness.Slow(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../deploy/install.sh", "install", "--binary", binary,
		"--bindir", filepath.Dir(c.Env.Shim), "--config", filepath.Join(c.Dir, "config.toml"),
		"--containerd", c.Env.Daemon, "--ctr", filepath.Join(c.Env.Tools, "ctr"), "--restart", restart)
	cmd.Env = append(os.Environ(), "TMPDIR="+c.dir)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	done := make(chan error, 1)
	go func() { done <- cmd.Run() }()
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case err := <-done:
			tick.Stop()
			if err != nil {
				err = fmt.Errorf("%v: %w\n%s", cmd.Args, err, out.String())
			}
			return err
		case <-tick.C:
		}
		if err := os.Remove(ask); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := errors.Join(c.Stop(), c.Daemon.Start(ctx), os.WriteFile(answer, nil, 0o600)); err != nil {
			cancel()
			return errors.Join(err, <-done)
		}
	}
}
