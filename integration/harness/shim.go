// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Usage is what a process holds that it should give back when the work that needed it is done.
type Usage struct {
	FDs     []string // what each descriptor stands for, sorted, without the numbers that differ from one to the next
	Threads int
}

// ReadUsage reads the descriptors and threads of a process.
func ReadUsage(pid int) (Usage, error) {
	var u Usage
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		return u, err
	}
	for _, e := range list {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		u.FDs = append(u.FDs, inode.ReplaceAllString(target, ""))
	}
	slices.Sort(u.FDs)
	text, err := ProcField(pid, "status", "Threads")
	if err != nil {
		return u, err
	}
	u.Threads, err = strconv.Atoi(text)
	return u, err
}

// inode is the number in "socket:[4711]".
var inode = regexp.MustCompile(`\[\d+\]$`)

// lazyFDs is how many descriptors Go and the log may open late and keep: one to ask what the kernel can do, say. What
// is left by each operation comes to many more.
const lazyFDs = 2

// CheckUsage fails the test unless the process comes back to the descriptors that it had before. Threads may grow by
// slack: Go keeps a thread that once blocked in the kernel for the next time.
func CheckUsage(tb testing.TB, pid int, before Usage, slack int) {
	tb.Helper()
	err := poll(leakPatience, func() error {
		after, err := ReadUsage(pid)
		if err != nil {
			return err
		}
		if len(after.FDs) > len(before.FDs)+lazyFDs {
			return fmt.Errorf("%d descriptors, %d before; new: %s", len(after.FDs), len(before.FDs),
				strings.Join(added(before.FDs, after.FDs), ", "))
		}
		if after.Threads > before.Threads+slack {
			return fmt.Errorf("%d threads, %d before", after.Threads, before.Threads)
		}
		return nil
	})
	if err != nil {
		tb.Errorf("shim %d: %v", pid, err)
	}
}

// added lists what after has more often than before.
func added(before, after []string) []string {
	rest := slices.Clone(before)
	var more []string
	for _, s := range after {
		if i := slices.Index(rest, s); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
		} else {
			more = append(more, s)
		}
	}
	return more
}

// goroutine is the first line of each goroutine in a dump of stacks.
var goroutine = regexp.MustCompile(`goroutine \d+ (gp=\S+ )?(m=\S+ )?(mp=\S+ )?\[`)

// dumped ends a dump of our shim, which comes in pieces.
var dumped = regexp.MustCompile(`goroutine dump: (\d+) in all`)

// Goroutines asks the shim for its stacks, which it writes to its log on SIGUSR1, and counts them. The log function
// returns what the log got since the call.
func Goroutines(tb testing.TB, pid int, log func() string) int {
	tb.Helper()
	if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
		tb.Fatalf("signal shim %d: %v", pid, err)
	}
	count := 0
	Eventually(tb, "stacks in the shim's log", func() error {
		text := log()
		count = len(goroutine.FindAllString(text, -1))
		if Runtime() != Ours { // its dump is one entry
			if count == 0 {
				return errors.New("no goroutines so far")
			}
			return nil
		}
		end := dumped.FindStringSubmatch(text)
		if end == nil {
			return fmt.Errorf("%d goroutines so far", count)
		}
		var err error
		count, err = strconv.Atoi(end[1])
		return err
	})
	return count
}

// ShimAddress returns the address of the shim that has a bundle of containerd 2.
func ShimAddress(bundle string) (string, error) {
	text, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err != nil {
		return "", err
	}
	var params struct{ Address string }
	if err := json.Unmarshal(text, &params); err != nil {
		return "", fmt.Errorf("bootstrap.json of %s: %w", bundle, err)
	}
	return params.Address, nil
}

// DialShim connects to the shim that has a bundle, past containerd. The connection stays open for the test.
func DialShim(tb testing.TB, bundle string) (task.TTRPCTaskService, error) {
	tb.Helper()
	address, err := ShimAddress(bundle)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(address, "unix://"))
	if err != nil {
		return nil, err
	}
	client := ttrpc.NewClient(conn)
	tb.Cleanup(func() { _ = client.Close() }) // the shim may have closed it
	return task.NewTTRPCTaskClient(client), nil
}

// PodKind is which container of a pod one is, in the words of CRI's annotation.
type PodKind string

// The kinds of containers of a pod. The first one, whose id is that of the pod, is its pause container.
const (
	PodFirst PodKind = "sandbox"
	PodOther PodKind = "container"
)

// InPod has the annotations that CRI gives to a container.
func InPod(pod string, kind PodKind) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{
		"io.kubernetes.cri.sandbox-id":     pod,
		"io.kubernetes.cri.container-type": string(kind),
	})
}

// Sharing has the namespaces of process pid that the containers of a pod share when the kubelet asks for nothing else
// (containerd, internal/cri/opts, WithPodNamespaces).
func Sharing(pid int) (opts []oci.SpecOpts) {
	for kind, name := range map[specs.LinuxNamespaceType]string{
		specs.NetworkNamespace: "net",
		specs.IPCNamespace:     "ipc", specs.UTSNamespace: "uts",
	} {
		opts = append(opts,
			oci.WithLinuxNamespace(specs.LinuxNamespace{Type: kind, Path: fmt.Sprintf("/proc/%d/ns/%s", pid, name)}))
	}
	return opts
}

// Gate stops an operation of a shim: it is a hook of the container that reports that it runs, and then waits until the
// test opens the gate. The end of the test opens it in any case.
type Gate struct {
	tb      testing.TB
	reached string
	fifo    string
	fd      int // holds the fifo open, so that the hook waits for a line and not for a writer
}

// NewGate makes a closed gate, whose files are in dir.
func NewGate(tb testing.TB, dir string) *Gate {
	tb.Helper()
	g := &Gate{tb: tb, reached: filepath.Join(dir, "gate.reached"), fifo: filepath.Join(dir, "gate.fifo")}
	err := unix.Mkfifo(g.fifo, 0o600)
	if err == nil {
		g.fd, err = unix.Open(g.fifo, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		tb.Fatalf("gate %s: %v", g.fifo, err)
	}
	tb.Cleanup(func() {
		g.Open()
		_ = unix.Close(g.fd)
	})
	return g
}

// Hook is the hook that waits.
func (g *Gate) Hook() specs.Hook {
	return specs.Hook{
		Path: "/bin/sh",
		Args: []string{"sh", "-c", `: >"$0"; read -r line <"$1"`, g.reached, g.fifo},
	}
}

// WaitReached waits until the operation stands at the gate.
func (g *Gate) WaitReached() {
	g.tb.Helper()
	Eventually(g.tb, "the gate is reached", func() error {
		_, err := os.Stat(g.reached)
		return err
	})
}

// Open lets everything pass, now and later.
func (g *Gate) Open() {
	g.tb.Helper()
	if _, err := unix.Write(g.fd, []byte("\n\n\n\n")); err != nil && !errors.Is(err, unix.EAGAIN) {
		g.tb.Errorf("open the gate: %v", err)
	}
}

// ShimPid returns the process that listens at the address of a bundle's shim.
func ShimPid(bundle string) (pid int, err error) {
	address, err := ShimAddress(bundle)
	if err != nil {
		return 0, err
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(address, "unix://"))
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // only the connect counts
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	failed := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(failed, err); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}
