// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/shim/integration/cri"
	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/tools"
)

// crictl is a containerd with CRI for each runtime.
type crictl struct {
	binary, version string
	dir, bin        string
	daemons         map[string]*cri.Daemon
	ready           []string // what is there when there is no pod
}

// crictlGroup is the cgroup parent of the pods.
const crictlGroup = harness.NamespacePrefix + "crictl"

// podScript runs a pod, whose id is in $W/pod. boxScript runs a container in it: box NAME COMMAND… prints its id. JSON
// in $MORE is added to what the container is, JSON in $LINUX to what it is on Linux.
const (
	podScript = `#!/bin/sh -e
cat >$W/pod.json <<END
{"metadata": {"name": "p", "uid": "u", "namespace": "default"}, "hostname": "p", "log_directory": "$W", "linux":
 {"cgroup_parent": "/$GROUP", "security_context": {"namespace_options": {"pid": 1}, "seccomp": {"profile_type": 0}}}}
END
crictl runp --runtime podsandbox $W/pod.json >$W/pod
`
	boxScript = `#!/bin/sh -e
name=$1
shift
command=
for word; do command="$command, \"$(echo "$word" | sed 's/[\\"]/\\&/g')\""; done
cat >$W/$name.json <<END
{"metadata": {"name": "$name"}, "image": {"image": "$IMAGE"}, "command": [${command#, }], "log_path": "$name.log"${MORE:+, $MORE},
 "linux": {"security_context": {"namespace_options": {"pid": 1}, "seccomp": {"profile_type": 0}}${LINUX:+, $LINUX}}}
END
id=$(crictl create "$(cat $W/pod)" $W/$name.json $W/pod.json)
crictl start "$id"
`
	crictlScript = `#!/bin/sh
exec "$CRICTL" "$@"
`
)

// newCrictl starts both.
func newCrictl(t *testing.T) *crictl {
	t.Helper()
	binary, version, err := tools.BuildCrictl(t.Context())
	harness.Must(t, err)
	c := &crictl{
		binary: binary, version: version, dir: filepath.Join(shared.Dir, "crictl"), daemons: map[string]*cri.Daemon{},
	}
	c.bin = filepath.Join(c.dir, "bin")
	err = errors.Join(os.MkdirAll(c.bin, 0o755), os.Chmod(c.dir, 0o711), cri.MakeCgroup("/"+crictlGroup),
		writeScripts(c.bin, map[string]string{"pod": podScript, "box": boxScript, "crictl": crictlScript}))
	harness.Must(t, err)
	harness.AtEnd(t, c.close)
	stock := shared.Env
	stock.Runtime, stock.Shim = "io.containerd.runc.v2", filepath.Join(stock.Tools, "containerd-shim-runc-v2")
	for runtime, env := range map[string]harness.Env{"runc": stock, "sandbox": shared.Env} {
		d, err := cri.NewDaemon(env, isolation)
		if err == nil {
			c.daemons[runtime] = d
			err = d.Start(t.Context())
		}
		if err == nil {
			config := fmt.Sprintf("runtime-endpoint: unix://%s\nimage-endpoint: unix://%[1]s\ntimeout: %d\n", d.Address, 60*harness.Slowness())
			err = os.WriteFile(c.config(runtime), []byte(config), 0o600)
		}
		if err != nil {
			t.Fatalf("containerd with CRI: %v\n%s", err, c.logs())
		}
	}
	c.ready = c.leaks()
	return c
}

func (c *crictl) config(runtime string) string { return filepath.Join(c.dir, runtime+".yaml") }

func (c *crictl) leaks() (leaks []string) {
	for _, d := range c.daemons {
		leaks = append(leaks, d.Scope(crictlGroup).Leaks()...)
	}
	return leaks
}

func (c *crictl) kind() string     { return "crictl" }
func (c *crictl) place() string    { return c.dir }
func (c *crictl) inspect(*session) {}
func (c *crictl) left() []string   { return beyond(c.ready, c.leaks()) }

func (c *crictl) versions() string {
	return fmt.Sprintf("crictl %s, containerd %s", c.version, c.daemons["sandbox"].Version)
}

func (c *crictl) environ(runtime string) []string {
	return []string{
		"PATH=" + c.bin + ":" + os.Getenv("PATH"), "HOME=" + c.dir, "CRI_CONFIG_FILE=" + c.config(runtime),
		"CRICTL=" + c.binary, "BUSYBOX=" + shared.Env.Busybox, "GROUP=" + crictlGroup, "IMAGE=" + harness.Image,
	}
}

func (c *crictl) clean(ctx context.Context) (err error) {
	for _, d := range c.daemons {
		err = errors.Join(err, d.RemovePods(ctx))
	}
	return err
}

func (c *crictl) remove() (err error) {
	for _, d := range c.daemons {
		err = errors.Join(err, d.Scope(crictlGroup).Remove())
	}
	return err
}

func (c *crictl) logs() (text string) {
	for _, d := range c.daemons {
		text += d.LogFrom(max(0, d.LogSize()-4000))
	}
	return text
}

func (c *crictl) close() error {
	err := c.remove()
	for _, d := range c.daemons {
		err = errors.Join(err, d.Close())
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

func TestCrictl(t *testing.T) {
	const box = "pod; box b sleep 1000 >$W/b; "
	compare(t, newCrictl(t), []clientCase{
		{name: "runp, pods, inspectp", script: `pod; crictl pods -o json | grep -c SANDBOX_READY; crictl inspectp $(cat $W/pod) | grep -c '"state": "SANDBOX_READY"'`, want: "1\n1\n"},
		{
			name: "create, start, ps, inspect, logs",
			script: `pod; box b sh -c 'echo out; echo err >&2; exit 3' >$W/b; await CONTAINER_EXITED crictl inspect -o go-template --template '{{.status.state}}' $(cat $W/b)
				crictl inspect -o go-template --template '{{.status.exitCode}} {{.status.reason}}' $(cat $W/b); crictl ps -aq | wc -l; crictl logs $(cat $W/b) 2>&1 | sort`,
			want: "3 Error\n1\nerr\nout\n",
		},
		{name: "run", script: `pod; box b true >/dev/null; crictl rmp -f $(cat $W/pod) >/dev/null; crictl run --runtime podsandbox --no-pull $W/b.json $W/pod.json | wc -l`, want: "1\n"},
		{
			name: "exec, its exit codes",
			script: box + `crictl exec $(cat $W/b) echo hello; crictl exec -s $(cat $W/b) echo again | head -n 1; code() { "$@" 2>$W/err || grep -oE '(code|with) [0-9]+' $W/err; }
				for n in 1 42 255; do code crictl exec $(cat $W/b) sh -c "exit $n"; code crictl exec -s $(cat $W/b) sh -c "exit $n"; done`,
			want: "hello\nagain\ncode 1\nwith 1\ncode 42\nwith 42\ncode 255\nwith 255\n",
		},
		{name: "exec -i, stderr apart", script: box + `echo hello | crictl exec -i $(cat $W/b) cat; crictl exec $(cat $W/b) sh -c 'echo out; echo err >&2' 2>$W/err; cat $W/err`, want: "hello\nout\nerr\n"},
		{name: "exec of 5 MB of output", script: box + `crictl exec $(cat $W/b) sh -c 'yes 0123456789 | head -c 5000000' | wc -c`, want: "5000000\n"},
		{name: "exec of what is absent, a timeout", script: box + `crictl exec -s $(cat $W/b) nothing 2>/dev/null || echo $?; crictl exec -s --timeout 1 $(cat $W/b) sleep 1000 2>/dev/null || echo $?`, want: "1\n1\n"},
		{name: "logs -f, --tail", script: `pod; box b sh -c 'for n in 1 2 3; do echo $n; sleep 0.2; done' >$W/b; crictl logs -f $(cat $W/b); crictl logs --tail 1 $(cat $W/b)`, want: "1\n2\n3\n3\n"},
		{
			name: "attach",
			script: `pod; MORE='"stdin": true, "stdin_once": true' box b sh -c 'read line; echo got $line' >$W/b
				(echo hello; rest 1) | crictl attach -i $(cat $W/b)`,
			want: "got hello\n",
		},
		{
			name: "stop with grace, and of one that does not listen",
			script: `pod; box a sh -c 'trap "exit 6" TERM; echo ready; while :; do sleep 0.1; done' >$W/a; box b sh -c 'trap "" TERM; echo ready; while :; do sleep 0.1; done' >$W/b
				await ready crictl logs $(cat $W/a); await ready crictl logs $(cat $W/b); crictl stop -t 20 $(cat $W/a) >/dev/null; crictl stop -t 1 $(cat $W/b) >/dev/null
				for id in $(cat $W/a) $(cat $W/b); do crictl inspect -o go-template --template '{{.status.exitCode}}' $id; done`,
			want: "6\n137\n",
		},
		{
			name: "stopp, rmp",
			script: box + `crictl stopp $(cat $W/pod) >/dev/null; crictl inspect -o go-template --template '{{.status.exitCode}}' $(cat $W/b); crictl pods -o json | grep -c SANDBOX_NOTREADY
				crictl rmp $(cat $W/pod) >/dev/null; crictl pods -q; crictl ps -aq`,
			want: "137\n1\n",
		},
		{
			name: "update",
			script: `read() { crictl exec $(cat $W/b) sh -c "cat /sys/fs/cgroup/$1 /sys/fs/cgroup/$2 2>/dev/null || :"; }
				pod; LINUX='"resources": {"memory_limit_in_bytes": 67108864, "cpu_period": 100000, "cpu_quota": 50000}' box b sleep 1000 >$W/b
				read memory/memory.limit_in_bytes memory.max; crictl update --memory 134217728 --cpu-quota 25000 $(cat $W/b) >/dev/null
				read memory/memory.limit_in_bytes memory.max; read cpu/cpu.cfs_quota_us cpu.max | cut -d' ' -f1`,
			want: "67108864\n134217728\n25000\n",
		},
		{
			name: "stats, statsp",
			script: box + `plain() { crictl "$1" -o json "$2" | tr -d ' \n'; }; uses() { plain stats $(cat $W/b) | grep -cE '"workingSetBytes":.{0,20}"value":"[1-9]'; }
				has() { plain statsp $(cat $W/pod) | grep -cE '"processCount":.{0,20}"value":"[1-9]'; }; for try in 1 2 3 4 5 6 7 8 9; do uses >/dev/null && has >/dev/null && break; rest 1; done; uses; has`,
			want: "1\n1\n",
		},
		{
			name: "port-forward",
			script: `pod; box b sh -c 'while :; do echo hello | nc -l -p 8080; done' >$W/b; crictl port-forward $(cat $W/pod) 18080:8080 >$W/log 2>&1 & 
				await hello $BUSYBOX nc -w 1 127.0.0.1 18080; kill $!`,
			want: "",
		},
	})
}
