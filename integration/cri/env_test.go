// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

// isolation and shared are those of all tests; shared is not for tests that stop or kill containerd. TestMain owns
// them.
var (
	isolation *cri.Isolation
	shared    *cri.Daemon
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	env, err := harness.Require(context.Background())
	if err == nil {
		isolation, err = cri.Isolate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status, err := runIn(m, env)
	if err = errors.Join(err, isolation.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

func runIn(m *testing.M, env harness.Env) (int, error) {
	var err error
	if shared, err = cri.NewDaemon(env, isolation); err != nil {
		return 1, fmt.Errorf("prepare containerd: %w", err)
	}
	if err := shared.Start(context.Background()); err != nil {
		return 1, errors.Join(fmt.Errorf("start containerd: %w\n%s", err, shared.LogFrom(0)), shared.Close())
	}
	status := m.Run()
	if flag.Lookup("test.run").Value.String() == "" && status == 0 {
		err = checkLaunched(shared.LogFrom(0))
	}
	if err != nil {
		status = 1
	}
	return status, errors.Join(err, shared.Close())
}

// mostByLibcontainer is how many containers of all tests libcontainer starts, since the launcher cannot: most are refused.
const mostByLibcontainer = 13

// checkLaunched refuses that libcontainer starts more, beside those in a user namespace or a shared PID namespace: many
// tests are about these.
func checkLaunched(log string) error {
	started := len(startedContainer.FindAllString(log, -1))
	others, left := 0, 0
	for line := range strings.Lines(log) {
		switch {
		case !strings.Contains(line, "init by libcontainer"):
		case strings.Contains(line, "namespace of another"), strings.Contains(line, "user namespace"):
			left++
		default:
			others++
		}
	}
	fmt.Fprintf(os.Stderr, "libcontainer started the first process of %d containers, and of %d in a user namespace or a "+
		"shared PID namespace; CRI started %d\n", others, left, started)
	if started == 0 || others > mostByLibcontainer {
		return fmt.Errorf("want at most %d by libcontainer, and at least one container", mostByLibcontainer)
	}
	return nil
}

var startedContainer = regexp.MustCompile(`StartContainer for .* returns successfully`)

// sandboxers are the ways to run pods for which the tests run when SHIM_TEST_SANDBOXER does not name one.
var sandboxers = []string{cri.PodSandbox, cri.Shim}

// testLimit ends every call of a test that hangs.
var testLimit = harness.Slow(2 * time.Minute)

// ways returns the ways for which the tests run. A shim that is not ours has the first one only.
func ways() []string {
	if name := os.Getenv("SHIM_TEST_SANDBOXER"); name != "" {
		return strings.Split(name, ",")
	}
	if harness.Runtime() != harness.Ours {
		return []string{cri.PodSandbox}
	}
	return sandboxers
}

func eachWay(t *testing.T, test func(e *env)) {
	t.Helper()
	for _, way := range ways() {
		t.Run(way, func(t *testing.T) { test(newEnvOn(t, shared, way)) })
	}
}

// eachWayAlone is eachWay with a containerd for each, which the test may end.
func eachWayAlone(t *testing.T, test func(e *env)) {
	t.Helper()
	eachWayPrepared(t, func(*testing.T, *cri.Daemon) {}, test)
}

// eachWayPrepared is eachWayAlone with something done to each containerd before it starts.
func eachWayPrepared(t *testing.T, prepare func(*testing.T, *cri.Daemon), test func(e *env)) {
	t.Helper()
	for _, way := range ways() {
		t.Run(way, func(t *testing.T) { test(newEnvOn(t, ownDaemon(t, prepare), way)) })
	}
}

// ownDaemon starts a containerd that ends with the test.
func ownDaemon(t *testing.T, prepare func(*testing.T, *cri.Daemon)) *cri.Daemon {
	t.Helper()
	return startDaemon(t, shared.Env, cri.Configured, prepare)
}

// startDaemon starts a containerd with a configuration, that ends with the test.
func startDaemon(
	t *testing.T, programs harness.Env, config func(*harness.Containerd) []byte,
	prepare ...func(*testing.T, *cri.Daemon),
) *cri.Daemon {
	t.Helper()
	d, err := cri.NewConfigured(programs, isolation, config)
	harness.Must(t, err)
	harness.AtEnd(t, d.Close)
	for _, p := range prepare {
		p(t, d)
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, d.LogFrom(0))
	}
	return d
}

// env is what one test works with: a way to run pods on a containerd, and a cgroup for them.
type env struct {
	testing.TB
	ctx      context.Context //nolint:containedctx // ends after testLimit: an env lives as long as one test
	daemon   *cri.Daemon
	way      string
	handler  string // of pods that do not say otherwise
	cgroup   string // parent of the pods' cgroups, and of the tests' only pod
	dir      string // for logs and volumes
	logStart int64
}

// newEnvOn prepares a test on d. What the test leaves behind fails it.
func newEnvOn(t *testing.T, d *cri.Daemon, way string) *env {
	t.Helper()
	hash := fnv.New32a()
	fmt.Fprint(hash, t.Name())
	name := fmt.Sprintf("%s%d-%08x", harness.NamespacePrefix, os.Getpid(), hash.Sum32())
	e := &env{
		TB: t, daemon: d, way: way, handler: way, cgroup: "/" + name,
		dir: publicDir(t, name), logStart: d.LogSize(),
	}
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	e.ctx = ctx
	t.Cleanup(cancel)
	e.Cleanup(func() { e.finish(name) })
	e.must(cri.MakeCgroup(e.cgroup), "cgroup of the test")
	return e
}

// publicDir makes one that programs in user namespaces can reach, which below t.TempDir they cannot.
func publicDir(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", name)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	harness.Must(t, err)
	harness.AtEnd(t, func() error { return os.RemoveAll(dir) })
	return dir
}

// finish removes the pods that the test did not remove and looks for leaks. It prints containerd's log, which has the
// shims' in it, when the test failed.
func (e *env) finish(name string) {
	if err := e.daemon.RemovePods(e.ctx); err != nil {
		e.Errorf("remove all pods: %v", err)
	}
	e.wantNothingLeft()
	e.daemon.Scope(name).Check(e.TB)
	if e.Failed() {
		e.Logf("log of containerd and the shims:\n%s", strings.TrimSpace(e.daemon.LogFrom(e.logStart)))
	}
}

// wantNothingLeft checks what a Scope does not see: containers and snapshots in containerd's own books, and interfaces.
func (e *env) wantNothingLeft() {
	e.Helper()
	cl, err := e.daemon.Client()
	e.must(err, "connect to containerd")
	defer func() { _ = cl.Close() }() // it was only asked
	e.must(harness.Poll(func() error {
		ctx := namespaces.WithNamespace(e.ctx, "k8s.io")
		list, err := cl.Containers(ctx)
		if err != nil {
			return err
		}
		sandboxes, err := cl.SandboxStore().List(ctx)
		if err != nil && !errdefs.IsNotImplemented(err) { // containerd 1.6 has none
			return err
		}
		addresses, err := e.daemon.Addresses()
		if err != nil {
			return err
		}
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		links = slices.DeleteFunc(links, func(i net.Interface) bool { return i.Name == "lo" || i.Name == cri.Bridge })
		if len(list)+len(sandboxes)+len(addresses)+len(links) > 0 {
			return fmt.Errorf("containers %q and sandboxes %v that containerd knows, addresses %q, interfaces %v",
				containerIDs(list), sandboxes, addresses, links)
		}
		return nil
	}), "wait until all is gone")
}

func containerIDs(list []client.Container) []string {
	ids := make([]string, len(list))
	for i, c := range list {
		ids[i] = c.ID()
	}
	return ids
}

func (e *env) must(err error, what string) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}

// file writes a file below the test's directory and returns its path.
func (e *env) file(name, text string) string {
	e.Helper()
	path := filepath.Join(e.dir, name)
	e.must(os.WriteFile(path, []byte(text), 0o644), "write "+name)
	return path
}

// volume makes a directory for a volume below the test's and returns its path.
func (e *env) volume() string {
	e.Helper()
	path := filepath.Join(e.dir, "volume")
	e.must(os.Mkdir(path, 0o755), "make a volume")
	return path
}

// pod is a pod of a test.
type pod struct {
	*cri.Pod
	e *env
}

// podConfig is that of a pod with changes.
func (e *env) podConfig(name string, change ...func(*runtimeapi.PodSandboxConfig)) *runtimeapi.PodSandboxConfig {
	c := cri.PodConfig(name, e.cgroup)
	c.LogDirectory = filepath.Join(e.dir, name)
	for _, f := range change {
		f(c)
	}
	return c
}

func (e *env) tryPod(name string, change ...func(*runtimeapi.PodSandboxConfig)) (*pod, error) {
	e.Helper()
	config := e.podConfig(name, change...)
	if config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions() != nil {
		harness.NeedsKernel(e, 5, 19, "overlayfs on layers whose users are mapped: containerd refuses the pod")
	}
	e.must(os.MkdirAll(config.GetLogDirectory(), 0o755), "directory of logs")
	p, err := e.daemon.RunPod(e.ctx, e.handler, config)
	return &pod{Pod: p, e: e}, err
}

func (e *env) pod(name string, change ...func(*runtimeapi.PodSandboxConfig)) *pod {
	e.Helper()
	p, err := e.tryPod(name, change...)
	e.must(err, "pod "+name)
	return p
}

func (p *pod) remove() {
	p.e.Helper()
	p.e.must(p.Remove(p.e.ctx), "remove")
}

func (p *pod) wantState(want runtimeapi.PodSandboxState) {
	p.e.Helper()
	harness.Eventually(p.e, "pod is "+want.String(), func() error {
		// There may be no answer while containerd sees that a shim has died.
		r, err := p.e.daemon.Runtime.PodSandboxStatus(p.e.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID})
		if err == nil && r.GetStatus().GetState() != want {
			err = fmt.Errorf("it is %v", r.GetStatus().GetState())
		}
		return err
	})
}

func (e *env) shim(p *pod) int {
	e.Helper()
	pid, err := harness.ShimPid(e.bundle(p))
	e.must(err, "shim of the pod")
	return pid
}

// bundle is that of a pod.
func (e *env) bundle(p *pod) string {
	e.Helper()
	found, err := filepath.Glob(filepath.Join(e.daemon.State, "*", "k8s.io", p.ID, "bootstrap.json"))
	if err != nil || len(found) != 1 {
		e.Fatalf("bundles of the pod: %v, %v, want one", found, err)
	}
	return filepath.Dir(found[0])
}

// forever is a program that ends on SIGTERM only, once it has said that it is ready.
var forever = []string{"sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 1000 & wait $!; done"}

// container is a container of a test.
type container struct {
	id     string
	pod    *pod
	config *runtimeapi.ContainerConfig
}

// change is made to a container's configuration before it is used.
type change func(*runtimeapi.ContainerConfig)

func (p *pod) config(name string, argv []string, changes []change) *runtimeapi.ContainerConfig {
	c := cri.ContainerConfig(name, argv...)
	// A container of a pod has the pod's namespaces, and that is for the kubelet to say again.
	options := p.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	c.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
		Network: options.GetNetwork(), Pid: options.GetPid(), Ipc: options.GetIpc(),
		UsernsOptions: options.GetUsernsOptions(),
	}
	if harness.AllExecsByLibcontainer() {
		p.e.execByLibcontainer(c)
	}
	for _, f := range changes {
		f(c)
	}
	return c
}

// execByLibcontainer makes libcontainer start the execs of a container.
func (e *env) execByLibcontainer(c *runtimeapi.ContainerConfig) {
	e.Helper()
	c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{
		ProfileType:  runtimeapi.SecurityProfile_Localhost,
		LocalhostRef: e.file("libcontainer.json", harness.ExecByLibcontainerProfile),
	}
}

func (p *pod) tryCreate(name string, argv []string, changes ...change) (*container, error) {
	c := &container{pod: p, config: p.config(name, argv, changes)}
	var err error
	c.id, err = p.Create(p.e.ctx, c.config)
	return c, err
}

func (p *pod) create(name string, argv []string, changes ...change) *container {
	p.e.Helper()
	c, err := p.tryCreate(name, argv, changes...)
	p.e.must(err, "create")
	return c
}

func (p *pod) run(name string, argv []string, changes ...change) *container {
	p.e.Helper()
	c := p.create(name, argv, changes...)
	c.start()
	return c
}

func (c *container) start() {
	c.pod.e.Helper()
	_, err := c.pod.e.daemon.Runtime.StartContainer(c.pod.e.ctx, &runtimeapi.StartContainerRequest{ContainerId: c.id})
	c.pod.e.must(err, "start "+c.config.GetMetadata().GetName())
}

// stop stops the container, within some seconds before it is killed.
func (c *container) stop(seconds int64) {
	c.pod.e.Helper()
	_, err := c.pod.e.daemon.Runtime.StopContainer(c.pod.e.ctx,
		&runtimeapi.StopContainerRequest{ContainerId: c.id, Timeout: seconds})
	c.pod.e.must(err, "stop "+c.config.GetMetadata().GetName())
}

func (c *container) end() {
	c.pod.e.Helper()
	c.wantLog("ready\n") // before that, SIGTERM would find no handler
	c.stop(10)
	c.wantExit(0)
}

func (c *container) remove() {
	c.pod.e.Helper()
	_, err := c.pod.e.daemon.Runtime.RemoveContainer(c.pod.e.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.id})
	c.pod.e.must(err, "remove "+c.config.GetMetadata().GetName())
}

// status returns what CRI says of the container.
func (c *container) status() *runtimeapi.ContainerStatus {
	c.pod.e.Helper()
	r, err := c.pod.e.daemon.Runtime.ContainerStatus(c.pod.e.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.id})
	c.pod.e.must(err, "status of "+c.config.GetMetadata().GetName())
	return r.GetStatus()
}

// wantExit waits until the container has exited, with code, and returns its last status.
func (c *container) wantExit(code int32) *runtimeapi.ContainerStatus {
	c.pod.e.Helper()
	var status *runtimeapi.ContainerStatus
	harness.Eventually(c.pod.e, c.config.GetMetadata().GetName()+" has exited", func() error {
		if status = c.status(); status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("it is %v", status.GetState())
		}
		return nil
	})
	if status.GetExitCode() != code {
		c.pod.e.Errorf("%s: exit code %d (%s: %s), want %d\n%s", c.config.GetMetadata().GetName(), status.GetExitCode(),
			status.GetReason(), status.GetMessage(), code, c.log())
	}
	return status
}

func (e *env) wantExited(containers ...*container) {
	e.Helper()
	harness.Eventually(e, "all have exited", func() error {
		for _, c := range containers {
			if s := c.status(); s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
				return fmt.Errorf("%s is %v", c.id, s.GetState())
			}
		}
		return nil
	})
}

// exec runs a command in the container and returns its output, or ends the test when that fails.
func (c *container) exec(argv ...string) string {
	c.pod.e.Helper()
	r, err := c.tryExec(0, argv...)
	c.pod.e.must(err, "exec "+strings.Join(argv, " "))
	if r.GetExitCode() != 0 {
		c.pod.e.Fatalf("exec %q: exit code %d: %s%s", argv, r.GetExitCode(), r.GetStdout(), r.GetStderr())
	}
	return string(r.GetStdout())
}

// tryExec runs a command in the container within seconds, or without a limit when they are 0.
func (c *container) tryExec(seconds int64, argv ...string) (*runtimeapi.ExecSyncResponse, error) {
	return c.pod.e.daemon.Runtime.ExecSync(c.pod.e.ctx,
		&runtimeapi.ExecSyncRequest{ContainerId: c.id, Cmd: argv, Timeout: seconds})
}

// usage returns what the pod's shim holds, once it has made what it keeps: the launcher of execs and the files of
// stats.
func (c *container) usage() harness.Usage {
	c.pod.e.Helper()
	c.exec("true")
	c.pod.e.stats(c.pod)
	u, err := harness.ReadUsage(c.pod.e.shim(c.pod))
	c.pod.e.must(err, "what the shim holds")
	return u
}

// wantExec runs a command in the container and compares its output, without white space at the ends.
func (c *container) wantExec(want string, argv ...string) {
	c.pod.e.Helper()
	if got := strings.TrimSpace(c.exec(argv...)); got != want {
		c.pod.e.Errorf("%q wrote %q, want %q", argv, got, want)
	}
}

// log returns what the container has written so far, both streams in order and without CRI's decoration.
func (c *container) log() string { return plain(c.rawLog()) }

func (c *container) rawLog() string {
	c.pod.e.Helper()
	text, err := os.ReadFile(filepath.Join(c.pod.Config.GetLogDirectory(), c.config.GetLogPath()))
	c.pod.e.must(err, "log of "+c.config.GetMetadata().GetName())
	return string(text)
}

// plain removes from each line of a log its time, its stream and the mark of partial lines.
func plain(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		fields := strings.SplitN(line, " ", 4)
		if len(fields) != 4 {
			return "not a line of CRI's: " + line
		}
		if _, err := time.Parse(time.RFC3339Nano, fields[0]); err != nil {
			return err.Error()
		}
		if fields[2] == "P" {
			fields[3] = strings.TrimSuffix(fields[3], "\n")
		}
		b.WriteString(fields[3])
	}
	return b.String()
}

func (c *container) wantLog(want string) {
	c.pod.e.Helper()
	harness.Eventually(c.pod.e, fmt.Sprintf("log with %q", want), func() error {
		if text := c.log(); !strings.Contains(text, want) {
			return fmt.Errorf("log is %.400q", text)
		}
		return nil
	})
}

// pid returns the first process of the container, as the machine numbers it.
func (c *container) pid() int {
	c.pod.e.Helper()
	return infoOf[struct{ Pid int }](c).Pid
}

// eachContainer is eachWay with a pod and a container in it.
func eachContainer(t *testing.T, test func(e *env, c *container)) {
	t.Helper()
	eachWay(t, func(e *env) { test(e, e.pod("p").run("c", forever)) })
}
