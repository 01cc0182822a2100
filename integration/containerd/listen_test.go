// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

func sockets(addresses string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{"io.containerd.sandbox.v1/listen": addresses})
}

// inspect prints init's variables about its sockets, the sockets, and then what comes by the first.
const inspect = `echo $LISTEN_PID $$ $LISTEN_FDS $LISTEN_FDNAMES
for fd in 3 4 5 6; do readlink /proc/self/fd/$fd | cut -d: -f1; done
exec head -c 6 <&3`

func TestListen_InitFindsSocketsInItsOwnNetwork(t *testing.T) {
	harness.OursOnly(t, "listen")
	e := newEnv(t)
	e.allow("listen")
	three := sockets("udp://127.0.0.1:5353 web=tcp://0.0.0.0:80 log=unix:///run/log.sock?type=dgram&mode=0600")
	c := e.create("c1", config{opts: with(three)}, "sh", "-c", inspect)
	x := c.runExec("e1", "sh", "-c", "stat -c '%F %a %u' /run/log.sock; ip -o link | grep -c .")
	if got, want := x.out.String(), "socket 600 0\n1\n"; got != want {
		t.Errorf("from inside, before init runs: %q, want %q; stderr %q", got, want, x.err)
	}
	c.dial("tcp/127.0.0.1/80", "")
	c.dial("udp/127.0.0.1/5353", "hello!")
	e.must(c.process.Start(e.ctx), "start")
	c.wantExit(0)
	if got, want := c.out.String(), "1 1 3 unknown:web:log\nsocket\nsocket\nsocket\nhello!"; got != want {
		t.Errorf("init prints %q, want %q; stderr %q", got, want, c.err)
	}
}

// dial sends text to an address in the network of a container: tcp/127.0.0.1/80, say.
func (t *task) dial(address, text string) {
	t.e.Helper()
	out, err := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", t.Pid()),
		"bash", "-c", "printf %s \"$1\" >/dev/$0", address, text).CombinedOutput()
	if err != nil {
		t.e.Fatalf("send to %s: %v: %s", address, err, out)
	}
}

func TestListen_UnixSocketFilesOfAKilledShimAreRemoved(t *testing.T) {
	harness.OursOnly(t, "listen")
	parent := newEnv(t)
	const inside = "cd /shared && "
	for i, tt := range []struct {
		name, script string
		want         []string // on the volume, and beside it
	}{
		{"the program leaves them alone", "", []string{"beside/s"}},
		{"one is the program's own by now", inside + "rm s && echo mine >s", []string{"beside/s", "volume/s"}},
		{"a link to a file of the host is in the place of one", inside + "rm s && ln -s ../beside/s s", []string{"beside/s", "volume/s"}},
		{"a link to a directory of the host is in the place of that of one", inside + "mv sub moved && ln -s ../beside sub", []string{"beside/s", "volume/moved/s", "volume/sub"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := parent.sub(t)
			e.allow("listen")
			dir := t.TempDir()
			e.must(errors.Join(os.MkdirAll(filepath.Join(dir, "volume/sub"), 0o755),
				os.Mkdir(filepath.Join(dir, "beside"), 0o755),
				os.WriteFile(filepath.Join(dir, "beside/s"), nil, 0o600)), "files of the host")
			root := filepath.Join(dir, "root")
			e.must(harness.WriteRootfs(e.containerd.Env, root), "a root file system that stays")
			id := "c" + strconv.Itoa(i)
			opts := with(oci.WithEnv([]string{"PATH=/bin"}), bind(filepath.Join(dir, "volume"), "/shared"),
				sockets("unix:///shared/s unix:///shared/sub/s?type=dgram unix:///tmp/s unix:///run/s unix:///dev/shm/s"))
			c := e.run(id, config{rootfs: root, opts: opts}, "/bin/sh", "-c", tt.script+"\necho done; exec sleep 1000")
			c.out.WaitFor(t, "done")
			for _, file := range []string{"/run/s", "/tmp/s", "/dev/shm/s"} {
				c.file(file)
			}
			e.must(unix.Kill(e.shim(id), unix.SIGKILL), "kill the shim")
			e.waitEvents(id, "exit "+id+" 137 | delete "+id)
			c.closeIO()
			if _, err := os.Lstat(filepath.Join(root, "tmp/s")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket in the root file system: %v, want that it is gone", err)
			}
			e.must(os.RemoveAll(root), "remove the root file system")
			if got := filesBelow(t, dir); !slices.Equal(got, tt.want) {
				t.Errorf("files = %q, want %q", got, tt.want)
			}
		})
	}
}

func filesBelow(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	harness.Must(t, err)
	return list
}
