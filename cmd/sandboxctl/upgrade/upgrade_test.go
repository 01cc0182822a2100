// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/pkg/protofield"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fakes are shims that answer Upgrade.
type fakes struct {
	*testing.T
	dir string
	mu  sync.Mutex
	now int // calls under way
	max int
	dry []bool // what was asked
}

func newFakes(t *testing.T) *fakes {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // a socket's path is limited to 107 bytes
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return &fakes{T: t, dir: dir}
}

// add starts one, and returns it as a target. answer is nil for a shim that does not have the method.
func (f *fakes) add(id, version string, answer func(ctx context.Context) (version string, upgraded bool, err error)) Target {
	f.Helper()
	server, err := ttrpc.NewServer()
	must(f.T, err)
	methods := map[string]ttrpc.Method{}
	if answer != nil {
		methods["Upgrade"] = func(ctx context.Context, decode func(any) error) (any, error) {
			var request, m emptypb.Empty
			var dry bool
			if err := decode(&request); err != nil {
				return nil, err
			}
			if err := protofield.Decode(request.ProtoReflect().GetUnknown(), nil, &dry); err != nil {
				return nil, err
			}
			f.call(1, dry)
			defer f.call(-1, dry)
			version, upgraded, err := answer(ctx)
			if err != nil {
				return nil, err
			}
			data, err := protofield.Encode(version, map[bool]uint32{true: 1}[upgraded])
			m.ProtoReflect().SetUnknown(data)
			return &m, err
		}
	}
	server.RegisterService("io.containerd.sandbox.v1.Inspect", &ttrpc.ServiceDesc{Methods: methods})
	socket := filepath.Join(f.dir, id)
	l, err := net.Listen("unix", socket)
	must(f.T, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(context.Background(), l) }() // ends with the server
	f.Cleanup(func() { _ = server.Close(); <-done })
	return Target{
		Namespace: "ns", ID: id, Name: id, Result: NotAsked,
		Shim: node.Shim{Pid: 7, Version: version, Address: socket},
	}
}

func (f *fakes) call(n int, dry bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now += n; n > 0 {
		f.dry = append(f.dry, dry)
	}
	f.max = max(f.max, f.now)
}

func to(version string, upgraded bool, err error) func(context.Context) (string, bool, error) {
	return func(context.Context) (string, bool, error) { return version, upgraded, err }
}

func busy() error { return status.Error(codes.Unavailable, "under way: Start") }

// newRun returns one whose lines are in out.
func newRun(out *bytes.Buffer, jobs uint) *run {
	return &run{jobs: jobs, timeout: 10 * time.Second, report: func(t *Target) { writeLine(out, t) }}
}

// results counts them.
func results(list []Target) map[Result]int {
	counts := map[Result]int{}
	for _, t := range list {
		counts[t.Result]++
	}
	return counts
}

func TestRun_SaysWhatBecameOfEachShim(t *testing.T) {
	f := newFakes(t)
	hung := f.add("hung", "0.2.0", func(context.Context) (string, bool, error) {
		<-t.Context().Done() // the end of the test
		return "", false, nil
	})
	pod := f.add("new", "0.2.0", to("0.3.0", true, nil))
	pod.Name = "default/web"
	dead := f.add("dead", "", nil)
	dead.Shim.Pid, dead.Shim.Error = 0, "connection refused"
	gone := f.add("gone", "0.2.0", nil)
	gone.Shim.Address += "-not"
	list := []Target{
		pod, f.add("current", "0.3.0", to("0.3.0", false, nil)), f.add("old", "0.1.0", nil),
		f.add("busy", "0.2.0\x1b[2J", to("", false, busy())), gone, dead, hung,
	}
	var out bytes.Buffer
	r := newRun(&out, 1)
	r.timeout = time.Second
	r.each(t.Context(), list)
	if err := finish(&out, &cli.Options{}, list); !errors.Is(err, cli.Exit(1)) {
		t.Errorf("after failures: %v, want exit status 1", err)
	}
	want := `7        upgraded  ns/new (default/web)      0.2.0 -> 0.3.0
7        current   ns/current                0.3.0
7        failed    ns/old                    0.1.0: this shim is older than 0.2.0 and cannot be upgraded in place
7        failed    ns/busy                   0.2.0` + "\ufffd" + `[2J: Upgrade: under way: Start
7        ended     ns/gone                   0.2.0
0        failed    ns/dead                   -: connection refused
7        failed    ns/hung                   0.2.0: the shim does not answer within 1s
shims: 1 upgraded, 1 current, 1 ended, 4 failed
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	out.Reset()
	must(t, finish(&out, &cli.Options{Output: cli.JSONOutput}, list[:2]))
	var got struct{ Shims []Target }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got.Shims) != 2 || got.Shims[1].Result != Current {
		t.Errorf("JSON %s, %v", &out, err)
	}
}

func TestRun_DryRun(t *testing.T) {
	f := newFakes(t)
	var out bytes.Buffer
	r := newRun(&out, 1)
	r.dryRun = true
	r.each(t.Context(), []Target{f.add("c1", "0.2.0", to("0.2.0", true, nil))})
	if want := "7        ready     ns/c1                     0.2.0\n"; out.String() != want {
		t.Errorf("output %q, want %q", &out, want)
	}
	if !slices.Equal(f.dry, []bool{true}) {
		t.Errorf("dry runs: %v, want one", f.dry)
	}
}

func TestRun_AsksSomeAtATime(t *testing.T) {
	f := newFakes(t)
	const jobs, shims = 3, 9
	arrived, leave := make(chan struct{}), make(chan struct{})
	var list []Target
	for i := range shims {
		list = append(list, f.add(fmt.Sprint("c", i), "0.2.0", func(context.Context) (string, bool, error) {
			arrived <- struct{}{}
			<-leave
			return "0.3.0", true, nil
		}))
	}
	go func() {
		for range shims / jobs { // a whole group is under way before one of it ends
			for range jobs {
				<-arrived
			}
			for range jobs {
				leave <- struct{}{}
			}
		}
	}()
	newRun(&bytes.Buffer{}, jobs).each(t.Context(), list)
	if n := results(list)[Upgraded]; n != shims || f.max != jobs {
		t.Errorf("%d upgraded, %d at a time, want %d, %d", n, f.max, shims, jobs)
	}
}

func TestRun_StopsAfterFailures(t *testing.T) {
	f := newFakes(t)
	var list []Target
	for i := range 6 {
		list = append(list, f.add(fmt.Sprint("c", i), "0.2.0", to("0.3.0", true, map[bool]error{true: busy()}[i%2 == 1])))
	}
	first := slices.Clone(list)
	r := newRun(&bytes.Buffer{}, 1)
	r.stopAfter = 2
	r.each(t.Context(), first)
	if diff := cmp.Diff(map[Result]int{Upgraded: 2, Failed: 2, NotAsked: 2}, results(first)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r = newRun(&bytes.Buffer{}, 1)
	r.report = func(*Target) { cancel() } // a signal, after which the answers are awaited
	r.each(ctx, list)
	if diff := cmp.Diff(map[Result]int{Upgraded: 1, NotAsked: 5}, results(list)); diff != "" {
		t.Errorf("results after a signal (-want +got):\n%s", diff)
	}
	if err := finish(&bytes.Buffer{}, &cli.Options{}, list); !errors.Is(err, cli.Exit(1)) {
		t.Errorf("after a signal: %v, want exit status 1", err)
	}
}

func TestTargets_AreShimsOnce(t *testing.T) {
	ours := func(address, version string) node.Shim {
		return node.Shim{Runtime: "io.containerd.sandbox.v1", Address: address, Pid: 7, Version: version}
	}
	single := func(id string, shim node.Shim) node.Pod {
		return node.Pod{Namespace: "ns", ID: id, Name: id, Shim: shim, Containers: []node.Container{{Namespace: "ns", ID: id}}}
	}
	dead := node.Shim{Runtime: "io.containerd.sandbox.v1", Error: "no address"}
	s := &node.Snapshot{Pods: []node.Pod{
		single("a", ours("/s/1", "0.1.0")),
		single("b", ours("/s/1", "0.1.0")),
		{
			Namespace: "ns", ID: "box", Name: "default/web", Sandbox: true, Shim: ours("/s/2", "0.1.0"),
			Containers: []node.Container{{Namespace: "ns", ID: "m1"}, {Namespace: "ns", ID: "m2"}},
		},
		single("before", ours("/s/3", "")),
		single("runc", node.Shim{Runtime: "io.containerd.runc.v2", Address: "/s/4", Pid: 8}),
		single("no-task", node.Shim{Runtime: "io.containerd.sandbox.v1"}),
		single("dead", dead),
		single("dead2", dead),
	}}
	for args, want := range map[string]string{
		"":        "a box before dead dead2",
		"a":       "a",
		"b a":     "a",
		"m1 m2":   "box",
		"bef":     "before",
		"runc":    "runc: no shim of io.containerd.sandbox.v1 runs it",
		"no-task": "no-task: no shim of io.containerd.sandbox.v1 runs it",
		"a x":     `"x": no container and no sandbox has this id`,
	} {
		list, err := targets(s, strings.Fields(args))
		var got []string
		for _, l := range list {
			got = append(got, l.ID)
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = err.Error()
		}
		if text != want && (err == nil || !strings.HasPrefix(text, want)) {
			t.Errorf("targets(%q) = %q, want %q", args, text, want)
		}
	}
}

func TestCommand_NeedsOneChoice(t *testing.T) {
	const choice, containerd = "needs ids of containers, --namespace, or --all", "/none: does not exist"
	for args, want := range map[string]string{
		"":                     choice,
		"--all a":              choice,
		"--all -n ns":          choice,
		"--all":                containerd,
		"-n ns":                containerd,
		"-n ns a b":            containerd,
		"--all --jobs 0":       "--jobs 0: must be more than 0",
		"--all --stop-after=-": `invalid argument "-" for "--stop-after"`,
	} {
		o := &cli.Options{}
		root := &cobra.Command{Use: "tool", SilenceErrors: true, SilenceUsage: true}
		o.Bind(root)
		root.AddCommand(Command(o))
		root.SetArgs(append([]string{"upgrade", "--address", "/none"}, strings.Fields(args)...))
		root.SetErr(io.Discard)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("upgrade %s: %v, want %q", args, err, want)
		}
	}
}
