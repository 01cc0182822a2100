// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	"sandbox.internal/shim/integration/harness"
)

// ctr is a namespace of a containerd, for the ctr of that.
type ctr struct {
	*harness.Containerd
	dir, bin, namespace string
	snapshotter         string
	ready               []string // what is there when there is no container
}

const ctrScript = `#!/bin/sh
if [ "$1" = run ]; then
	shift
	set -- run --runtime "$TYPE" "$@"
fi
exec "$CTR" "$@"
`

// newCtr prepares a namespace of c, which runs.
func newCtr(t *testing.T, c *harness.Containerd) *ctr {
	t.Helper()
	x := &ctr{Containerd: c, dir: filepath.Join(c.Dir, "ctr"), namespace: harness.NamespacePrefix + "ctr"}
	x.bin = filepath.Join(x.dir, "bin")
	err := errors.Join(os.MkdirAll(x.bin, 0o755), os.Chmod(x.dir, 0o711), writeScripts(x.bin, map[string]string{"ctr": ctrScript}))
	harness.Must(t, err)
	cl, err := c.Client()
	harness.Must(t, err)
	defer func() { _ = cl.Close() }() // it has done what it was for
	if _, x.snapshotter, err = c.Load(namespaces.WithNamespace(t.Context(), x.namespace), cl); err != nil {
		t.Fatal(err)
	}
	harness.AtEnd(t, func() error { return errors.Join(x.remove(), os.RemoveAll(x.dir)) })
	x.ready = x.scope().Leaks()
	return x
}

func (x *ctr) scope() harness.Scope {
	return harness.Scope{
		Namespace: x.namespace, MountsIn: x.State,
		Dirs: []string{filepath.Join(x.State, "io.containerd.runtime.v2.task", x.namespace), x.Sockets},
	}
}

func (x *ctr) kind() string     { return "ctr" }
func (x *ctr) versions() string { return "containerd and ctr " + x.Version }
func (x *ctr) place() string    { return x.dir }
func (x *ctr) inspect(*session) {}
func (x *ctr) left() []string   { return beyond(x.ready, x.scope().Leaks()) }
func (x *ctr) remove() error    { return x.scope().Remove() }
func (x *ctr) logs() string     { return x.LogFrom(max(0, x.LogSize()-4000)) }

func (x *ctr) environ(runtime string) []string {
	return []string{
		"PATH=" + x.bin + ":" + x.Env.Tools + ":" + os.Getenv("PATH"), "HOME=" + x.dir,
		"CTR=" + filepath.Join(x.Env.Tools, "ctr"), "CONTAINERD_ADDRESS=" + x.Address, "CONTAINERD_NAMESPACE=" + x.namespace,
		"CONTAINERD_SNAPSHOTTER=" + x.snapshotter, "CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1", "IMAGE=" + harness.Image,
		"TYPE=" + map[string]string{"runc": "io.containerd.runc.v2", "sandbox": harness.Ours}[runtime],
	}
}

func (x *ctr) clean(ctx context.Context) error {
	const script = `for id in $(ctr tasks ls -q); do ctr tasks rm -f $id >/dev/null || [ -z "$(ctr tasks ls -q)" ]; done
		for id in $(ctr containers ls -q); do ctr containers rm $id; done`
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Env = append(os.Environ(), x.environ("")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("remove containers: %w\n%s", err, out)
	}
	return nil
}

// noEffect is what the log of a shim says of a runtime binary.
const noEffect = "the option BinaryName has no effect"

// wantSaid checks that the log of our shim has said that a runtime binary has no effect, once.
func (x *ctr) wantSaid(s *session, since int64) {
	if n := strings.Count(x.LogFrom(since), noEffect); n != 1 {
		s.Fatalf("the log says %d times that %s, want once", n, noEffect)
	}
}

func TestCtr(t *testing.T) {
	const box = "ctr run -d $IMAGE box sleep 1000; "
	x := newCtr(t, shared.Containerd)
	compare(t, x, []clientCase{
		{
			name:   "run, its exit codes, stderr apart",
			script: `ctr run --rm $IMAGE box sh -c 'echo out; echo err >&2; exit 7' 2>$W/err || echo $?; cat $W/err; echo hello | ctr run --rm $IMAGE box sh -c 'read line; echo $line'`,
			want:   "out\n7\nerr\nhello\n",
		},
		{
			name: "run -d, tasks ls, ps, kill, delete",
			script: box + `ctr tasks ls | grep -o 'RUNNING'; ctr tasks ps box | wc -l; ctr tasks kill -s KILL box; await STOPPED sh -c "ctr tasks ls | grep -o STOPPED"
				ctr tasks rm box; ctr containers rm box; ctr containers ls -q`,
			want: "RUNNING\n2\n",
		},
		{
			name: "exec, its exit codes, -d",
			script: box + `ctr tasks exec --exec-id e box sh -c 'echo hello; exit 5' || echo $?; ctr tasks exec --exec-id e --user tester --cwd /tmp box sh -c 'id -un; pwd'
				ctr tasks exec -d --exec-id d box sleep 1001; await 3 sh -c "ctr tasks ps box | wc -l"`,
			want: "hello\n5\ntester\n/tmp\n",
		},
		{name: "pause, resume", script: box + `ctr tasks pause box; ctr tasks ls | grep -o PAUSED; ctr tasks resume box; ctr tasks ls | grep -o RUNNING`, want: "PAUSED\nRUNNING\n"},
		{name: "metrics", script: box + `ctr tasks metrics box | grep -ciE '^(memory.usage_in_bytes|memory.usage) +[1-9]'`, want: "1\n"},
		{
			name: "--memory-limit, --cpus, --cpuset-cpus, --cgroup",
			script: `read() { ctr tasks exec --exec-id r box sh -c "cd /sys/fs/cgroup; cat $1 $2 $CONTAINERD_NAMESPACE/own/$2 2>/dev/null || :"; }
				ctr run -d --memory-limit 67108864 --cpus 0.5 --cpuset-cpus 0 --cgroup /$CONTAINERD_NAMESPACE/own --mount type=cgroup,src=cgroup,dst=/sys/fs/cgroup,options=ro $IMAGE box sleep 1000
				read memory/memory.limit_in_bytes memory.max; read cpu/cpu.cfs_quota_us cpu.max | cut -d' ' -f1; ctr tasks exec --exec-id r box grep Cpus_allowed_list /proc/self/status
				grep -c /own /proc/$(ctr tasks ls | awk '$1 == "box" { print $2 }')/cgroup | sed 's/[1-9][0-9]*/own/'`,
			want: "67108864\n50000\nCpus_allowed_list:\t0\nown\n",
		},
		{
			name: "--env, --cwd, --user, --hostname, --read-only, --mount, --label",
			script: `mkdir $W/d; ctr run --rm --env A=1 --cwd /tmp --user tester --hostname name --read-only --mount type=bind,src=$W/d,dst=/mnt,options=rbind:ro --label l=v $IMAGE box \
				sh -c 'echo $A $(pwd) $(id -u) $(hostname); touch /tmp/f /mnt/f 2>&1 | grep -c Read-only'`,
			want: "1 /tmp 1000 name\n2\n",
		},
		{
			name: "--cap-drop, --cap-add, --privileged, --seccomp",
			script: `ctr run --rm --cap-drop CAP_CHOWN --cap-add CAP_NET_ADMIN $IMAGE box grep CapEff /proc/self/status; ctr run --rm --seccomp $IMAGE box grep ^Seccomp: /proc/self/status
				[ "$(ctr run --rm --privileged $IMAGE box grep CapEff /proc/self/status)" = "$(grep CapEff /proc/self/status)" ] && echo all`,
			want: "CapEff:\t00000000a80435fa\nSeccomp:\t2\nall\n",
		},
		{
			name: "--net-host, --with-ns",
			script: `[ "$(ctr run --rm --net-host $IMAGE box readlink /proc/self/ns/net)" = "$(readlink /proc/self/ns/net)" ] && echo "host's"
				ctr run -d $IMAGE one sleep 1000; pid=$(ctr tasks ls | awk '$1 == "one" { print $2 }')
				[ "$(ctr run --rm --with-ns ipc:/proc/$pid/ns/ipc $IMAGE box readlink /proc/self/ns/ipc)" = "$(readlink /proc/$pid/ns/ipc)" ] && echo joined`,
			want: "host's\njoined\n",
		},
		{
			name: "--pid-file, --null-io, --log-uri",
			script: `ctr run -d --pid-file $W/pid --null-io $IMAGE box sleep 1000; [ "$(cat $W/pid)" = "$(ctr tasks ls | awk '$1 == "box" { print $2 }')" ] && echo same
				ctr run -d --log-uri file://$W/log $IMAGE other echo hello; await hello cat $W/log`,
			want: "same\n",
		},
		{name: "--rootfs", script: `mkdir $W/m $W/r; ctr images mount $IMAGE $W/m >/dev/null; cp -a $W/m/. $W/r; ctr images unmount --rm $W/m >/dev/null; ctr run --rm --rootfs $W/r box /bin/echo hello`, want: "hello\n"},
		{name: "a program that is absent", script: `ctr run --rm $IMAGE box nothing 2>/dev/null || echo $?`, want: "1\n"},
		{
			name: "events, in order", // the runc shim may not publish an exit that a delete has overtaken
			script: `ctr events >$W/events & rest 1; ctr run --rm $IMAGE box true; await 1 grep -c /tasks/delete $W/events; kill $!
				grep -o '/tasks/[a-z]*' $W/events >$W/seen; if [ $RUNTIME = sandbox ]; then cat $W/seen; else printf '/tasks/%s\n' create start exit delete; fi`,
			want: "/tasks/create\n/tasks/start\n/tasks/exit\n/tasks/delete\n",
		},
		{
			name:   "--runc-binary, --runc-root",
			script: `ctr run --rm --runc-binary $(command -v runc) --runc-root $W/root $IMAGE box echo hello`,
			want:   "hello\n",
			ours:   "ctr itself refuses `--runc-binary` and `--runc-systemd-cgroup` for any runtime but `io.containerd.runc.v2`",
		},
		{
			name: "--runtime-config-path with a BinaryName: accepted, no effect",
			run: func(s *session) {
				size := x.LogSize()
				s.Shell(`echo 'BinaryName = "/nothing"' >$W/options; ctr run --rm --runtime-config-path $W/options $IMAGE box echo hello`)
				if s.runtime == "sandbox" {
					x.wantSaid(s, size)
				}
			},
		},
	})
}

// Where the shim is called containerd-shim-runc-v2, all options of runc's reach it.
func TestCtr_InPlaceOfTheRuncShim(t *testing.T) {
	env := shared.Env
	env.Shim = filepath.Join(t.TempDir(), "containerd-shim-runc-v2")
	harness.Must(t, os.Symlink(shared.Env.Shim, env.Shim))
	c, err := harness.NewContainerd(env)
	if err == nil {
		err = c.Start(t.Context())
	}
	harness.Must(t, err)
	harness.AtEnd(t, c.Close)
	x := newCtr(t, c)
	_, err = play(t.Context(), x, clientCase{
		run: func(s *session) {
			size := x.LogSize()
			s.Shell(`ctr run -d --runc-binary /nothing --runc-root $W/root $IMAGE box sleep 1000`)
			x.wantSaid(s, size)
			shims := harness.ShimsOf(x.Address, "")
			if len(shims) != 1 {
				s.Fatalf("shims are %v, want one", shims)
			}
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", shims[0].Pid))
			s.Must(err, "the shim's program")
			if exe != shared.Env.Shim {
				s.Fatalf("the shim is %s, want %s", exe, shared.Env.Shim)
			}
		},
		script: `ls $W/root/*`,
		want:   "box\n",
	}, "runc")
	if err != nil {
		t.Error(err, x.logs())
	}
}
