// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idle"
	"sandbox.internal/shim/pkg/options"
)

// The test binary plays the shim's binary, run by a test. So tests see whole processes, with what they inherit and what
// they leave.
const (
	asShimEnv   = "TEST_AS_SHIM"    // set: be the shim
	asMainEnv   = "TEST_AS_MAIN"    // set: end with status reachedMain
	daemonEnvar = "TEST_DAEMON"     // how the daemon behaves: serve, fail, die, hang, panic, crash
	reportEnv   = "TEST_REPORT_DIR" // where each daemon leaves a report named by its pid
)

func TestMain(m *testing.M) {
	if os.Getenv(asMainEnv) != "" {
		os.Exit(reachedMain)
	}
	if os.Getenv(asShimEnv) == "" {
		os.Exit(m.Run())
	}
	if err := playShim(); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// playShim does what containerd's arguments ask.
func playShim() error {
	a := Args{Defaults: options.NewDefaults(options.DefaultFile)}
	var ignored string
	f := flag.NewFlagSet(Program, flag.ExitOnError)
	f.StringVar(&a.Namespace, "namespace", "", "")
	f.StringVar(&a.ID, "id", "", "")
	f.StringVar(&a.Address, "address", "", "")
	f.StringVar(&ignored, "publish-binary", "", "")
	if err := f.Parse(os.Args[1:]); err != nil {
		return err
	}
	if f.Arg(0) == "delete" {
		bundle, err := os.Getwd()
		if err != nil {
			return err
		}
		return RemoveSocket(context.Background(), bundle)
	}
	return Start(a, os.Stdin, playServe)
}

// report is what a daemon says of itself.
type report struct {
	Namespace, ID, Bundle, Address, TTRPCAddress, SocketPath string
	Debug                                                    bool
	Args                                                     []string
	Cwd                                                      string
	Stdio                                                    [3]string
	Open                                                     []string // what the descriptors above stdio are of
	Inheritable                                              []string // those that survive an exec
	Pgid, Pid                                                int
	Sid, Caller                                              int
	OOMScoreAdj                                              string
	Cgroup                                                   string
	Godebug                                                  string
	Gomaxprocs                                               string
	Umask, StarterUmask                                      int
}

// playServe is serve of a daemon in a test.
func playServe(ctx context.Context, d Daemon, l idle.Listener) error {
	if err := writeReport(d); err != nil {
		return err
	}
	switch os.Getenv(daemonEnvar) {
	case "fail":
		return errors.New("no engine today")
	case "die":
		os.Exit(7)
	case "hang":
		<-ctx.Done()
		return ctx.Err()
	case "panic":
		panic("in serve")
	case "crash":
		go func() { panic("in a goroutine") }()
		<-ctx.Done()
		return ctx.Err()
	}
	s, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	task.RegisterTTRPCTaskService(s, connectOnly{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }() // ends with Close, joined below
	<-ctx.Done()
	return errors.Join(ctx.Err(), s.Close(), ignore(<-ended, ttrpc.ErrServerClosed))
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// connectOnly answers Connect, which is all that ping asks.
type connectOnly struct{ task.TTRPCTaskService }

func (connectOnly) Connect(context.Context, *task.ConnectRequest) (*task.ConnectResponse, error) {
	return &task.ConnectResponse{ShimPid: uint32(os.Getpid())}, nil
}

func writeReport(d Daemon) error {
	dir := os.Getenv(reportEnv)
	if dir == "" {
		return nil
	}
	r := report{
		Namespace: d.Namespace, ID: d.ID, Bundle: d.Bundle, Address: d.Address, TTRPCAddress: d.TTRPCAddress,
		SocketPath: d.SocketPath, Debug: d.Debug, Pid: os.Getpid(), Pgid: unix.Getpgrp(), Caller: caller(),
		Godebug: os.Getenv("GODEBUG"), Gomaxprocs: os.Getenv("GOMAXPROCS"),
		Umask: unix.Umask(0), StarterUmask: d.Umask,
	}
	var err error
	if r.Cwd, err = os.Getwd(); err != nil {
		return err
	}
	args, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		return err
	}
	r.Args = strings.Split(strings.TrimRight(string(args), "\x00"), "\x00")
	if r.Sid, err = unix.Getsid(0); err != nil {
		return err
	}
	for i := range r.Stdio {
		if r.Stdio[i], err = os.Readlink("/proc/self/fd/" + strconv.Itoa(i)); err != nil {
			return err
		}
	}
	if r.Open, r.Inheritable, err = descriptors(); err != nil {
		return err
	}
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	cgroup, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	r.OOMScoreAdj, r.Cgroup = string(score), string(cgroup)
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// As a whole: the test reads it as soon as it is there.
	tmp := fmt.Sprintf("%s.%d", dir, r.Pid)
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, strconv.Itoa(r.Pid)))
}

// descriptors lists what the descriptors of this process above stdio are of, and which of them a child would get.
func descriptors() (all, inheritable []string, err error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			continue // that of ReadDir
		}
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		all = append(all, target)
		if flags&unix.FD_CLOEXEC == 0 {
			inheritable = append(inheritable, target)
		}
	}
	return all, inheritable, nil
}
