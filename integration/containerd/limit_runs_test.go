// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/integration/harness"
)

// message is a decoded message: of each field by its number the values, uint64 or []byte.
type message map[protowire.Number][]any

func decodeMessage(e *env, b []byte) message {
	e.Helper()
	m := message{}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		e.must(protowire.ParseError(min(n, 0)), "decode")
		b = b[n:]
		var value any
		if kind == protowire.VarintType {
			value, n = protowire.ConsumeVarint(b)
		} else {
			value, n = protowire.ConsumeBytes(b)
		}
		e.must(protowire.ParseError(min(n, 0)), "decode")
		b, m[number] = b[n:], append(m[number], value)
	}
	return m
}

func (m message) number(field protowire.Number) uint64 {
	if len(m[field]) == 0 {
		return 0
	}
	return m[field][0].(uint64)
}

func (m message) text(field protowire.Number) string {
	if len(m[field]) == 0 {
		return ""
	}
	return string(m[field][0].([]byte))
}

// ask calls a method of the shim's own service, whose requests have strings.
func (t *task) ask(method string, fields ...string) (message, error) {
	t.e.Helper()
	address, err := harness.ShimAddress(t.e.bundle(t.container.ID()))
	t.e.must(err, "address of the shim")
	conn, err := net.Dial("unix", strings.TrimPrefix(address, "unix://"))
	t.e.must(err, "dial "+address)
	client := ttrpc.NewClient(conn)
	defer client.Close()
	var request, answer emptypb.Empty
	var b []byte
	for i, text := range fields {
		b = protowire.AppendString(protowire.AppendTag(b, protowire.Number(i+1), protowire.BytesType), text)
	}
	request.ProtoReflect().SetUnknown(b)
	if err := client.Call(t.e.ctx, "io.containerd.sandbox.v1.Runs", method, &request, &answer); err != nil {
		return nil, errgrpc.ToNative(err)
	}
	return decodeMessage(t.e, answer.ProtoReflect().GetUnknown()), nil
}

func TestLimit_VerdictsAreToldOverTheSocket(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited("cpu-time=200ms"))}, "sleep", "1000")
	j.exec(c, "first", nil, "exit 3")
	_, v := j.exec(c, "second", nil, spin)
	both, err := c.ask("Verdicts", "c1")
	j.must(err, "Verdicts")
	one, err := c.ask("Verdicts", "c1", "second")
	j.must(err, "Verdicts of second")
	if len(both[1]) != 2 || len(one[1]) != 1 {
		t.Fatalf("%d and %d verdicts, want 2 and 1", len(both[1]), len(one[1]))
	}
	if first := decodeMessage(j.env, both[1][0].([]byte)); first.text(2) != "first" || first.number(6) != 3 {
		t.Errorf("first verdict %v", first)
	}
	m := decodeMessage(j.env, one[1][0].([]byte))
	got := verdict{
		Container: m.text(1), Exec: m.text(2), Pid: int(m.number(3)), Status: int(m.number(6)), Signal: int(m.number(7)),
		Limit: m.text(8), Wall: time.Duration(m.number(9)), CPU: time.Duration(m.number(10)), User: time.Duration(m.number(11)),
		System: time.Duration(m.number(12)), MemoryPeak: m.number(13), OOMKills: m.number(14), ForksRefused: m.number(15),
		Started: v.Started, Ended: v.Ended, Stdout: v.Stdout, Stderr: v.Stderr,
	}
	if got != v {
		t.Errorf("by the socket %+v, in the file %+v", got, v)
	}
	if _, err := c.ask("Verdicts", "none"); !errdefs.IsNotFound(err) {
		t.Errorf("verdicts of an unknown container: %v, want not found", err)
	}
	c.kill()
}

// The processes of an exec are named as its, in a cgroup of its own also those that left its session.
func TestLimit_ProcessesAreNamed(t *testing.T) {
	harness.OursOnly(t, "the shim's own service")
	e := newEnv(t)
	for id, opts := range map[string]config{"plain": {}, "limits": {opts: with(execLimits("on"))}} {
		c := e.run(id, opts, "sleep", "1000")
		x := c.exec("e1", config{}, nil, "sh", "-c", "sleep 999 & i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo worked; wait")
		e.must(x.Start(e.ctx), "start e1")
		x.out.WaitFor(t, "worked")
		m, err := c.ask("Processes", id)
		e.must(err, "Processes")
		var got []string
		for _, one := range m[1] {
			p := decodeMessage(e, one.([]byte))
			var started timestamppb.Timestamp
			got = append(got, fmt.Sprintf("%s %q %d", p.text(4), p.text(2), p.number(3)))
			s := decodeMessage(e, p[5][0].([]byte))
			started.Seconds = int64(s.number(1))
			if age := time.Since(started.AsTime()); age < 0 || age > time.Minute {
				t.Errorf("%s: %s began %v ago", id, p.text(4), age)
			}
			if p.number(7) == 0 || p.text(4) == "sh" && p.number(6) == 0 {
				t.Errorf("%s: %v has no memory or no CPU time", id, p)
			}
		}
		slices.Sort(got)
		if want := `sh "e1" 1|sleep "" 1|sleep "e1" 0`; strings.Join(got, "|") != want || m.number(2) != 0 {
			t.Errorf("%s: %s, want %s", id, strings.Join(got, "|"), want)
		}
		x.kill()
		c.kill()
	}
}
