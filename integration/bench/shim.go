// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// startCommand times what containerd runs for each new shim, and shuts the shim down again.
func (h *host) startCommand(ctx context.Context, s subject, id string) (float64, error) {
	bundle := filepath.Join(h.dir, "bundles", id)
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(bundle) }() // host.stop removes the parent
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion":"1.2.0"}`), 0o600); err != nil {
		return 0, err
	}
	closeLog, err := makeLog(bundle)
	if err != nil {
		return 0, err
	}
	defer closeLog()
	dir := filepath.Join(h.dir, "s")
	params, err := proto.Marshal(&bootstrap.BootstrapParams{
		InstanceID: id, Namespace: h.namespace, ContainerdVersion: "2.4.2",
		ContainerdGrpcAddress: h.address(), ContainerdTtrpcAddress: h.address() + ".ttrpc",
		ContainerdBinary: h.daemon.Path, SocketDir: &dir,
	})
	if err != nil {
		return 0, err
	}
	// An interrupt waits for this: a start that is cut short may leave a shim that nobody knows.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.shim, "-namespace", h.namespace, "-address", h.address(),
		"-publish-binary", h.daemon.Path, "-id", id, "start")
	cmd.Dir, cmd.Stdin = bundle, bytes.NewReader(params)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", "MAX_SHIM_VERSION=2", "NAMESPACE="+h.namespace,
		"TTRPC_ADDRESS="+h.address()+".ttrpc", "GRPC_ADDRESS="+h.address())
	var out []byte
	took, err := timed(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	var result bootstrap.BootstrapResult
	if err := proto.Unmarshal(out, &result); err != nil {
		return 0, fmt.Errorf("decode answer %q: %w", out, err)
	}
	return took, shutdown(ctx, id, strings.TrimPrefix(result.Address, "unix://"))
}

// makeLog makes the fifo for a shim's log, as containerd does: the runc shim ends where there is none. What a shim says in
// its short life fits into the pipe.
func makeLog(bundle string) (closeLog func(), err error) {
	name := filepath.Join(bundle, "log")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, fmt.Errorf("make fifo %s: %w", name, err)
	}
	log, err := os.OpenFile(name, os.O_RDWR, 0) // so that it opens at once, and the shim's end too
	if err != nil {
		return nil, err
	}
	return func() { _ = log.Close() }, nil // nobody reads it
}

// shutdown ends a shim that has no container, and waits until it is gone.
func shutdown(ctx context.Context, id, socket string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	closed := make(chan struct{})
	client := ttrpc.NewClient(conn, ttrpc.WithOnClose(func() { close(closed) }))
	defer func() { _ = client.Close() }() // the shim closed it already
	// The answer may be lost: the shim is entitled to be gone first.
	_, _ = taskapi.NewTTRPCTaskClient(client).Shutdown(ctx, &taskapi.ShutdownRequest{ID: id, Now: true})
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("shim at %s does not shut down: %w", socket, ctx.Err())
	}
}

// sizes takes the figures that need no repetition.
func sizes(ctx context.Context, t *table, column int, s subject, idle containerd.Task) error {
	pid, err := parent(int(idle.Pid()))
	if err != nil {
		return err
	}
	for _, row := range []struct{ name, field string }{
		{"shim PSS, one idle container", "Pss"}, {"shim anonymous memory", "Anonymous"},
	} {
		kib, err := rollup(pid, row.field)
		if err != nil {
			return err
		}
		t.add(row.name, "MiB", column, kib/1024)
	}
	for _, row := range []struct{ name, binary string }{
		{"package init, shim", s.shim}, {"package init, container init", s.inner},
	} {
		for range 5 {
			ms, ok, err := packageInit(ctx, row.binary)
			if err != nil {
				return err
			}
			if ok {
				t.add(row.name, "ms", column, ms)
			}
		}
	}
	binaries := map[string]bool{s.shim: true, s.inner: true}
	var total int64
	for binary := range binaries {
		info, err := os.Stat(binary)
		if err != nil {
			return err
		}
		total += info.Size()
	}
	t.add("binaries (shim and runtime)", "MiB", column, float64(total)/(1<<20))
	return nil
}

// parent is the pid of the process that pid is a child of: for a container's init, its shim.
func parent(pid int) (int, error) {
	text, err := field(fmt.Sprintf("/proc/%d/status", pid), "PPid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// rollup reads a line of smaps_rollup, in KiB.
func rollup(pid int, name string) (float64, error) {
	text, err := field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSuffix(text, " kB"), 64)
}

// field finds "name: value" in a file of proc.
func field(path, name string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("read %s: no line %q", path, name)
}

// packageInit is the time that a Go program spends before main. ok is false for a program that is not in Go.
func packageInit(ctx context.Context, binary string) (ms float64, ok bool, err error) {
	cmd := exec.CommandContext(ctx, binary, "--version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		return 0, false, fmt.Errorf("%s --version: %w: %s", binary, err, trace.String())
	}
	ms, ok = sumInit(trace.String())
	return ms, ok, nil
}

// sumInit adds up the clock column of GODEBUG=inittrace=1 (package runtime, "inittrace").
func sumInit(trace string) (ms float64, ok bool) {
	for line := range strings.Lines(trace) {
		f := strings.Fields(line)
		// init internal/bytealg @0.008 ms, 0 ms clock, 0 bytes, 0 allocs
		if len(f) < 7 || f[0] != "init" || f[6] != "clock," {
			continue
		}
		n, err := strconv.ParseFloat(f[4], 64)
		if err != nil {
			continue
		}
		ms, ok = ms+n, true
	}
	return ms, ok
}
