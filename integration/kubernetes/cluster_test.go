// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

const (
	// address is the node's, which may not be one of 127.0.0.0/8.
	address  = "10.99.0.1"
	node     = "node"
	shimName = "containerd-shim-sandbox-v1"
)

// scopeName names what pods have on the machine. "/"+scopeName is the cgroup of all pods.
var scopeName = harness.NamespacePrefix + "kube-" + strconv.Itoa(os.Getpid())

// cluster is a control plane, a kubelet, and the containerd below it.
type cluster struct {
	*cri.Daemon
	programs tools.Kubernetes
	source   string // the shim that is installed
	dir      string // everything of Kubernetes is below
	bin      string // what scripts find first
	baseline []string
	running  []*program // in the order of their start
}

// program is a process of the cluster.
type program struct {
	name   string
	cmd    *exec.Cmd
	exited <-chan struct{}
}

// newCluster prepares a cluster and starts nothing.
func newCluster(env harness.Env, isolation *cri.Isolation, programs tools.Kubernetes) (*cluster, error) {
	source := env.Shim
	env.Shim = "" // so that it is in containerd's PATH only where it is installed
	d, err := cri.NewConfigured(env, isolation, func(c *harness.Containerd) []byte {
		return append(cri.Config(c, "runc"),
			"[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"...)
	})
	if err != nil {
		return nil, err
	}
	c := &cluster{
		Daemon: d, programs: programs, source: source, dir: filepath.Join(d.Dir, "k"), bin: filepath.Join(d.Dir, "scripts"),
	}
	d.Env.Shim = filepath.Join(d.Dir, "bin", shimName)
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// prepare makes what the programs read, and covers what a kubelet has at places that nobody can choose.
func (c *cluster) prepare() error {
	// The users of a pod's own come by on the way to their volumes.
	for _, dir := range []string{c.dir, c.bin, c.kubeletDir()} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/var/lib", "/var/log"} {
		if err := harness.Mount("tmpfs", dir, "tmpfs", 0); err != nil {
			return err
		}
	}
	if err := addAddress(); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	files := map[string]string{
		"sa.key": string(pem.EncodeToMemory(
			&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)},
		)),
		"tokens":      "token,admin,1,system:masters\n",
		"resolv.conf": "nameserver " + address + "\n",
		"kubeconfig": fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://%s:6443", insecure-skip-tls-verify: true}}],
users: [{name: u, user: {token: token}}], contexts: [{name: c, context: {cluster: c, user: u}}]}
`, address),
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(c.dir, file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for script, text := range scripts {
		if err := os.WriteFile(filepath.Join(c.bin, script), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			return err
		}
	}
	return errors.Join(c.coverLock(), c.buildHealth(), c.prepareKubelet(), cri.MakeCgroup("/"+scopeName))
}

// coverLock gives this cluster a lock of install.sh that other tests do not take.
func (c *cluster) coverLock() error {
	var err error
	own, lock := filepath.Join(c.dir, "lock"), "/run/"+shimName+".lock"
	for _, name := range []string{own, lock} {
		f, e := os.OpenFile(name, os.O_CREATE, 0o644)
		if err = errors.Join(err, e); e == nil {
			err = f.Close()
		}
	}
	return errors.Join(err, harness.Mount(own, lock, "", unix.MS_BIND))
}

// buildHealth makes the program of a pod with a gRPC probe.
func (c *cluster) buildHealth() error {
	cmd := exec.Command("go", "build", "-o", c.bin, "./health")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build health: %w\n%s", err, out)
	}
	return nil
}

func addAddress() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	ip, err := netlink.ParseAddr(address + "/32")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(lo, ip)
}

// setUp starts everything, as somebody who follows docs/kubernetes.md does, and returns when pods can be run.
func (c *cluster) setUp(ctx context.Context) error {
	steps := []func(context.Context) error{
		c.Daemon.Start, c.startControlPlane,
		func(ctx context.Context) error { return c.install(ctx, c.source) },
		c.startKubelet, c.register,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	c.baseline = c.scope().Leaks()
	return nil
}

// startControlPlane returns when the API server serves.
func (c *cluster) startControlPlane(ctx context.Context) error {
	file := func(name string) string { return filepath.Join(c.dir, name) }
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	if err := c.start("etcd", c.programs.Etcd, "--data-dir", file("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer); err != nil {
		return err
	}
	if err := c.start("apiserver", c.programs.APIServer, "--etcd-servers", client, "--cert-dir", file("pki"),
		"--bind-address", address, "--advertise-address", address, "--secure-port", "6443",
		"--token-auth-file", file("tokens"), "--authorization-mode", "AlwaysAllow", "--allow-privileged",
		"--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", file("sa.key"), "--service-account-signing-key-file", file("sa.key"),
		"--kubelet-preferred-address-types", "InternalIP", "--enable-priority-and-fairness=false",
		"--feature-gates", "ContainerStopSignals=true"); err != nil {
		return err
	}
	if err := harness.Poll(func() error {
		if err := c.ended(); err != nil {
			return nil //nolint:nilerr // it is asked for below
		}
		_, err := c.kubectl(ctx, "get", "--raw", "/readyz")
		return err
	}); err != nil {
		return err
	}
	if err := c.start("controllers", c.programs.Controllers, "--kubeconfig", file("kubeconfig"),
		"--leader-elect=false", "--secure-port", "0", "--service-account-private-key-file", file("sa.key"),
		"--root-ca-file", file("pki/apiserver.crt"), "--kube-api-qps", "200", "--kube-api-burst", "400",
		"--controllers", "serviceaccount-controller,namespace-controller,root-ca-certificate-publisher-controller,"+
			"deployment-controller,replicaset-controller,garbage-collector-controller,job-controller,"+
			"daemonset-controller,disruption-controller,node-lifecycle-controller"); err != nil {
		return err
	}
	return errors.Join(c.start("scheduler", c.programs.Scheduler, "--kubeconfig", file("kubeconfig"),
		"--leader-elect=false", "--secure-port", "0", "--kube-api-qps", "200", "--kube-api-burst", "400"), c.ended())
}

// register does what docs/kubernetes.md says about a node that has the handlers.
func (c *cluster) register(ctx context.Context) error {
	if err := harness.Poll(func() error {
		if err := c.ended(); err != nil {
			return nil //nolint:nilerr // it is asked for below
		}
		_, err := c.kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=10s", "node/"+node)
		return err
	}); err != nil {
		return err
	}
	const label = "io.containerd.sandbox.v1/"
	_, labelled := c.kubectl(ctx, "label", "node", node, label+"installed=true", label+"pauseless=true")
	_, applied := c.kubectl(ctx, "apply", "-f", "../../deploy/runtimeclass.yaml")
	return errors.Join(labelled, applied, c.ended())
}

// start starts a program, which writes to a log of its own.
func (c *cluster) start(name string, arg ...string) error {
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the program has it
	cmd := exec.Command(arg[0], arg[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir}
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	exited, err := harness.Spawn(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	c.running = append(c.running, &program{name: name, cmd: cmd, exited: exited})
	return nil
}

// ended names a program that has ended by itself.
func (c *cluster) ended() error {
	for _, p := range c.running {
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended: %v", p.name, p.cmd.ProcessState)
		default:
		}
	}
	return nil
}

// end ends the latest program.
func (c *cluster) end(signal syscall.Signal) error {
	p := c.running[len(c.running)-1]
	c.running = c.running[:len(c.running)-1]
	err := p.cmd.Process.Signal(signal)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case <-p.exited:
		return err
	case <-time.After(harness.Slow(time.Minute)):
		return errors.Join(err, fmt.Errorf("%s does not end after %v", p.name, signal), p.cmd.Process.Kill())
	}
}

func (c *cluster) kubectl(ctx context.Context, arg ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.programs.Kubectl, arg...)
	cmd.Env = []string{"KUBECONFIG=" + filepath.Join(c.dir, "kubeconfig"), "HOME=" + c.dir, "PATH=" + os.Getenv("PATH")}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(arg, " "), err, stderr.Bytes())
	}
	return string(out), nil
}

// scope is where everything of the pods is, of all runtimes.
func (c *cluster) scope() harness.Scope {
	s := c.Scope(scopeName)
	s.Dirs = append(s.Dirs, filepath.Join(c.kubeletDir(), "pods"))
	return s
}

// noise is what a kubelet says of cgroups that others make.
var noise = regexp.MustCompile(`(?m)^.*inotify_add_watch.*\n`)

// logs is the end of what the programs and containerd wrote.
func (c *cluster) logs() string {
	var all strings.Builder
	names, _ := filepath.Glob(filepath.Join(c.dir, "*.log")) // the pattern is right
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			text = []byte(err.Error())
		}
		text = noise.ReplaceAll(text, nil)
		fmt.Fprintf(&all, "== %s\n%s\n", filepath.Base(name), text[max(0, len(text)-4000):])
	}
	return all.String() + "== containerd\n" + c.LogFrom(max(0, c.LogSize()-4000))
}

func (c *cluster) close() error {
	var err error
	for len(c.running) > 0 {
		err = errors.Join(err, c.end(syscall.SIGTERM))
	}
	return errors.Join(err, c.scope().Remove(), c.Daemon.Close())
}
