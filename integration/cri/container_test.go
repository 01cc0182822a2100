// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
)

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

// tryCreate creates a container.
func (p *pod) tryCreate(name string, argv []string, changes ...change) (*container, error) {
	c := &container{pod: p, config: p.config(name, argv, changes)}
	var err error
	c.id, err = p.Create(p.e.ctx, c.config)
	return c, err
}

// create creates a container, or ends the test.
func (p *pod) create(name string, argv []string, changes ...change) *container {
	p.e.Helper()
	c, err := p.tryCreate(name, argv, changes...)
	p.e.must(err, "create")
	return c
}

// run creates and starts a container, or ends the test.
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

// end stops a container that runs forever.
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

// wantExited waits until containers have exited, with whatever code.
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

// succeeds returns an error unless a command in the container ends well.
func (c *container) succeeds(argv ...string) error {
	r, err := c.tryExec(10, argv...)
	if err == nil && r.GetExitCode() != 0 {
		err = fmt.Errorf("%q: exit code %d: %s%s", argv, r.GetExitCode(), r.GetStdout(), r.GetStderr())
	}
	return err
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

// wantLog waits until the log contains want.
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
