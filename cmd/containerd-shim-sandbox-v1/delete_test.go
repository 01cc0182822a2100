// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestDeleteBundle(t *testing.T) {
	dir := shortDir(t)
	bundle := filepath.Join(dir, "c1")
	if err := os.Mkdir(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	f := flags{namespace: "ns", id: "c1", address: "/a", bundle: bundle}
	path, err := socketPath(dir, f.address, f.namespace, f.id)
	if err != nil {
		t.Fatal(err)
	}
	if err := recordSocket(bundle, path); err != nil {
		t.Fatal(err)
	}
	l, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1700000000, 5).UTC()
	remove := func(ctx context.Context, namespace, id, got string) (exit, error) {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 5*time.Second {
			t.Errorf("remove has until %v, want less than containerd's 5 s", deadline)
		}
		if namespace != "ns" || id != "c1" || got != bundle {
			t.Errorf("remove(%q, %q, %q), want ns, c1, %q", namespace, id, got, bundle)
		}
		return exit{Pid: 42, Status: 137, At: at}, nil
	}
	for _, step := range []struct {
		name string
		left bool
	}{{"the shim lives", true}, {"the shim is dead", false}, {"the second time", false}} {
		var stdout bytes.Buffer
		if err := deleteBundle(f, &stdout, deleteTimeout, remove); err != nil {
			t.Fatalf("%s: deleteBundle = %v", step.name, err)
		}
		var got task.DeleteResponse
		if err := proto.Unmarshal(stdout.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		want := &task.DeleteResponse{Pid: 42, ExitStatus: 137, ExitedAt: timestamppb.New(at)}
		if !proto.Equal(&got, want) {
			t.Errorf("%s: answer = %v, want %v", step.name, &got, want)
		}
		if _, err := os.Lstat(path); (err == nil) != step.left {
			t.Errorf("%s: socket left = %t, want %t", step.name, err == nil, step.left)
		}
		_ = l.file.Close() // the shim dies; the second time it is closed already
	}
}

func TestDeleteBundleReportsWhatRemoveSays(t *testing.T) {
	f := flags{namespace: "ns", id: "c1", bundle: "/nowhere/c1"}
	var stdout bytes.Buffer
	err := deleteBundle(f, &stdout, deleteTimeout, func(context.Context, string, string, string) (exit, error) {
		return exit{}, errdefs.ErrUnavailable
	})
	if !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), `"c1"`) || stdout.Len() > 0 {
		t.Errorf("deleteBundle = %v with answer %q, want remove's error, the id and no answer", err, stdout.String())
	}
}

func TestAge(t *testing.T) {
	if first := age(); first <= 0 || first > time.Hour {
		t.Errorf("age = %v, want that of this process", first)
	}
	before := age()
	at := time.Now()
	for time.Since(at) < 20*time.Millisecond {
		runtime.Gosched()
	}
	if grown := age() - before; grown < 20*time.Millisecond || grown > 10*time.Second {
		t.Errorf("age grew by %v in 20ms", grown)
	}
}

func TestRecordedSocketIsFoundWithWhatIsLeft(t *testing.T) {
	bundle := t.TempDir()
	path, err := socketPath("/run/s", "/a", "ns", "c1")
	if err != nil {
		t.Fatal(err)
	}
	if err := recordSocket(bundle, path); err != nil {
		t.Fatal(err)
	}
	inDefault, err := socketPath(defaultSocketDir, "/a", "ns", "c1")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ name, remove, want string }{
		{"all is there", "nothing", path},
		{"the address file is gone", addressFile, path},
		{"the link is gone too", socketDirLink, inDefault},
	} {
		if err := os.RemoveAll(filepath.Join(bundle, step.remove)); err != nil {
			t.Fatal(err)
		}
		if got := recordedSocket(bundle, "/a", "ns", "c1"); got != step.want {
			t.Errorf("%s: recordedSocket = %q, want %q", step.name, got, step.want)
		}
	}
}

func TestBundleOfWorkingFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if got, err := bundleOf(flags{id: "c1"}); err != nil || got != dir {
		t.Errorf("bundleOf = %q, %v, want %q", got, err, dir)
	}
	if _, err := bundleOf(flags{id: "c2"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("bundleOf in another container's bundle = %v, want ErrInvalidArgument", err)
	}
}

func TestGroup(t *testing.T) {
	tests := []struct {
		name, spec string // no spec: no file
		want       string
		bad        bool
	}{
		{name: "no config.json is a group of its own", want: "c1"},
		{name: "no annotations", spec: `{"ociVersion":"1.2.0"}`, want: "c1"},
		{name: "a pod", spec: `{"annotations":{"io.kubernetes.cri.sandbox-id":"pod"}}`, want: "pod"},
		{name: "runc's label goes first", spec: `{"annotations":{"io.kubernetes.cri.sandbox-id":"pod","io.containerd.runc.v2.group":"g"}}`, want: "g"},
		{name: "an empty label is none", spec: `{"annotations":{"io.containerd.runc.v2.group":""}}`, want: "c1"},
		{name: "a label that leaves the namespace", spec: `{"annotations":{"io.containerd.runc.v2.group":"../other/c"}}`, bad: true},
		{name: "a label with an empty element", spec: `{"annotations":{"io.containerd.runc.v2.group":"a//b"}}`, bad: true},
		{name: "no JSON", spec: `{`, bad: true},
		{name: "annotations of another type", spec: `{"annotations":["x"]}`, bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.spec != "" {
				if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(tt.spec), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := group(dir, "c1")
			if got != tt.want || errdefs.IsInvalidArgument(err) != tt.bad {
				t.Errorf("group with %q = %q, %v, want %q, invalid %t", tt.spec, got, err, tt.want, tt.bad)
			}
		})
	}
}

func TestInfo(t *testing.T) {
	options, err := os.ReadFile("testdata/stdin-1.7.35.bin")
	if err != nil {
		t.Fatal(err)
	}
	enabled := true
	want := &features.Features{OCIVersionMin: "1.0.0", Linux: &features.Linux{Namespaces: []string{"user"}, Cgroup: &features.Cgroup{V2: &enabled}}}
	stdin, err := os.Open("testdata/stdin-1.7.35.bin")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }() // opened for reading only
	var stdout bytes.Buffer
	if err := info(stdin, &stdout, want); err != nil {
		t.Fatal(err)
	}
	var got types.RuntimeInfo
	if err := proto.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.GetName() != "io.containerd.sandbox.v1" {
		t.Errorf("name = %q", got.GetName())
	}
	if back, err := proto.Marshal(got.GetOptions()); err != nil || !bytes.Equal(back, options) {
		t.Errorf("options = %x, %v, want %x", back, err, options)
	}
	if got := got.GetFeatures().GetTypeUrl(); got != "types.containerd.io/opencontainers/runtime-spec/1/features/Features" {
		t.Errorf("features have type URL %q", got)
	}
	var back features.Features
	if err := json.Unmarshal(got.GetFeatures().GetValue(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &back); diff != "" {
		t.Errorf("features (-want +got):\n%s", diff)
	}
}

func TestVersionText(t *testing.T) {
	f := &features.Features{Annotations: map[string]string{seccompAnnotation: "2.5.4"}}
	got := versionText(f)
	for _, want := range []string{"containerd-shim-sandbox-v1:\n  Version:  ", "\n  Revision: ", "\n  Go version: go1.", "\n  libcontainer: v1.", "\n  seccomp: 2.5.4\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("versionText = %q, want %q in it", got, want)
		}
	}
	if got := versionText(nil); !strings.Contains(got, "seccomp: off\n") {
		t.Errorf("versionText without features = %q, want seccomp off", got)
	}
}

func TestRaiseOOMScore(t *testing.T) {
	for _, tt := range []struct{ parent, want string }{{"-999\n", "-998"}, {"0\n", "1"}, {"1000\n", "1000"}} {
		proc := t.TempDir()
		for name, text := range map[string]string{"7": tt.parent, "self": "unset"} {
			if err := os.Mkdir(filepath.Join(proc, name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, name, "oom_score_adj"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := raiseOOMScore(proc, 7); err != nil {
			t.Fatalf("raiseOOMScore above %q = %v", tt.parent, err)
		}
		got, err := os.ReadFile(filepath.Join(proc, "self", "oom_score_adj"))
		if err != nil || !strings.HasPrefix(string(got), tt.want) {
			t.Errorf("above %q the score is %q, %v, want %q", tt.parent, got, err, tt.want)
		}
	}
	if err := raiseOOMScore(t.TempDir(), 7); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("raiseOOMScore of a parent that is gone = %v, want not exist", err)
	}
}

func TestCgroupMounts(t *testing.T) {
	hybrid, err := os.ReadFile("testdata/mountinfo-6.18-hybrid")
	if err != nil {
		t.Fatal(err)
	}
	var unified strings.Builder
	for line := range strings.Lines(string(hybrid)) {
		if !strings.Contains(line, " - cgroup cgroup ") {
			unified.WriteString(line)
		}
	}
	first := ""
	for line := range strings.Lines(string(hybrid)) {
		if strings.Contains(line, " - cgroup cgroup ") {
			first = line
			break
		}
	}
	v1 := []string{}
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"} {
		v1 = append(v1, "/sys/fs/cgroup/"+c)
	}
	tests := []struct {
		name, text string
		want       []string
	}{
		{"hybrid means the v1 hierarchies", string(hybrid), v1},
		{"v2 alone", unified.String(), []string{"/sys/fs/cgroup/unified"}},
		{"a bind mount of a hierarchy does not count", string(hybrid) + strings.Replace(first, "/sys/fs/cgroup/", "/mnt/", 1), v1},
		{"escaped blanks", strings.Replace(first, "/sys/fs/cgroup/cpu", `/a\040b`, 1), []string{"/a b"}},
		{"nothing", "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "mountinfo")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := cgroupMounts(file)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("cgroupMounts = %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestServes(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	is := func(want bool, what string) {
		t.Helper()
		if got, err := serves(t.Context(), path, "c1"); err != nil || got != want {
			t.Errorf("%s: serves = %t, %v, want %t", what, got, err, want)
		}
	}
	is(false, "no socket")
	l, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	is(true, "a shim that hangs")
	if err := unix.Listen(int(l.file.Fd()), 0); err != nil {
		t.Fatal(err)
	}
	is(true, "a shim that hangs, with no place for another connection")
	if err := unix.Listen(int(l.file.Fd()), backlog); err != nil {
		t.Fatal(err)
	}
	u, err := l.serve()
	if err != nil {
		t.Fatal(err)
	}
	dead := make(chan struct{})
	go func() { // a shim that dies once it has been connected to
		defer close(dead)
		conn, err := u.Accept()
		_ = u.Close()
		if err == nil {
			_ = conn.Close()
		}
	}()
	is(false, "a shim that dies")
	<-dead
	is(false, "a dead socket")
}

// A shim that cannot take a connection into its poller, for want of memory say, hangs up: that is not death.
func TestServes_AShimThatHangsUpIsNotDead(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	l, err := listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	u, err := l.serve()
	if err != nil {
		t.Fatal(err)
	}
	const enough = 5
	ctx, cancel := context.WithCancel(t.Context())
	accepted, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := u.Accept()
			if err != nil {
				return // closed below
			}
			_ = conn.Close()
			if accepted++; accepted == enough {
				cancel() // the time of the command is over
			}
		}
	}()
	alive, err := serves(ctx, path, "c1")
	_ = u.Close()
	<-ended
	if alive || !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), path) {
		t.Errorf("serves = %t, %v, want ErrUnavailable that names %s", alive, err, path)
	}
	if accepted < enough {
		t.Errorf("it was asked %d times, want %d", accepted, enough)
	}
}
