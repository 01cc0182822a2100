// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/pkg/bootstrap"
)

func TestParseFlags(t *testing.T) {
	tests := []struct {
		name string
		args string
		want flags
	}{
		{
			"containerd's start with debug level",
			"-namespace k8s.io -address /run/containerd/containerd.sock -publish-binary /usr/bin/containerd -id c1 -debug start",
			flags{Args: bootstrap.Args{Namespace: "k8s.io", Address: "/run/containerd/containerd.sock", ID: "c1", Debug: true}, action: "start"},
		},
		{
			"containerd's delete",
			"-namespace k8s.io -address a -publish-binary b -id c1 -bundle /run/b/c1 delete",
			flags{Args: bootstrap.Args{Namespace: "k8s.io", Address: "a", ID: "c1"}, bundle: "/run/b/c1", action: "delete"},
		},
		{
			"an empty address, as tests of containerd pass it",
			"-namespace ns -address  -id c1 start",
			flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}, action: "start"},
		},
		{"the daemon, with double dashes", "--namespace ns --id c1", flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}}},
		{"sockets to serve on", "-namespace ns -id c1 -socket /s -debug-socket /d", flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}}},
		{"-v", "-v", flags{version: true}},
		{"--version", "--version", flags{version: true}},
		{"-info", "-info", flags{info: true}},
		{"--help", "--help", flags{help: true}},
		{"-h", "-h", flags{help: true}},
		{"the word help", "help", flags{help: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseFlags(strings.Split(tt.args, " "))
			if err != nil || got != tt.want {
				t.Errorf("parseFlags(%q) = %+v, %v, want %+v", tt.args, got, err, tt.want)
			}
		})
	}
}

func TestParseFlags_RefusesWhatContainerdNeverPasses(t *testing.T) {
	for _, args := range [][]string{{"-nope"}, {"-id"}, {"start", "now"}, {"-debug=maybe"}} {
		_, err := parseFlags(args)
		if !errors.Is(err, errUsage) || !errdefs.IsInvalidArgument(err) {
			t.Errorf("parseFlags(%q) error = %v, want wrong use and ErrInvalidArgument", args, err)
		}
	}
}

func TestValidate_NamesFlagAndValue(t *testing.T) {
	good := flags{Args: bootstrap.Args{Namespace: "ns", ID: "c1"}}
	tests := []struct {
		name string
		f    func(f *flags)
		want []string // parts of the error; none for success
	}{
		{"plain ids pass", func(*flags) {}, nil},
		{"76 characters pass", func(f *flags) { f.Namespace = strings.Repeat("n", 76) }, nil},
		{"a matching bundle passes", func(f *flags) { f.bundle = "/run/b/c1" }, nil},
		{"77 characters do not", func(f *flags) { f.ID = strings.Repeat("n", 77) }, []string{"-id", "nnn", "76"}},
		{"a slash in the id", func(f *flags) { f.ID = "a/b" }, []string{"-id", `"a/b"`, "must match"}},
		{"dots for an id", func(f *flags) { f.ID = ".." }, []string{"-id", `".."`, "must match"}},
		{"a namespace that climbs", func(f *flags) { f.Namespace = "../x" }, []string{"-namespace", `"../x"`, "must match"}},
		{"no id", func(f *flags) { f.ID = "" }, []string{"-id", "empty"}},
		{"no namespace", func(f *flags) { f.Namespace = "" }, []string{"-namespace", "empty"}},
		{"a newline at the end", func(f *flags) { f.ID = "c1\n" }, []string{"-id", `c1\n`}},
		{"a relative bundle", func(f *flags) { f.bundle = "b/c1" }, []string{"-bundle", `"b/c1"`, "absolute"}},
		{"another container's bundle", func(f *flags) { f.bundle = "/run/b/c2" }, []string{"-bundle", `"/run/b/c2"`, `"c1"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := good
			tt.f(&f)
			err := f.validate()
			if len(tt.want) == 0 {
				if err != nil {
					t.Errorf("validate(%+v) = %v, want nil", f, err)
				}
				return
			}
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("validate(%+v) = %v, want ErrInvalidArgument", f, err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("validate(%+v) = %q, want %q in it", f, err, part)
				}
			}
		})
	}
}

func TestRun_ByHand(t *testing.T) {
	golden, err := os.ReadFile("help.txt")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // exact stdout; stderr must end in it
	}{
		{"--help answers on stdout", []string{"--help"}, 0, string(golden), ""},
		{"no arguments is wrong use", nil, 2, "", string(golden)},
		{"an unknown flag is wrong use", []string{"-nope"}, 2, "", string(golden)},
		{"an unknown action is wrong use", []string{"-namespace", "n", "-id", "i", "stop"}, 2, "", string(golden)},
		{"no action is wrong use", []string{"-namespace", "n", "-id", "i"}, 2, "", string(golden)},
		{"flags without ids are wrong use", []string{"start"}, 2, "", string(golden)},
		{
			"a bad id is one line, since containerd quotes it",
			[]string{"-namespace", "n", "-id", "a/b", "start"},
			1, "",
			`containerd-shim-sandbox-v1: -id "a/b": identifier "a/b" must match ^[A-Za-z0-9]+(?:[._-](?:[A-Za-z0-9]+))*$: invalid argument`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(tt.args, nil, &stdout, &stderr, nil)
			if code != tt.code {
				t.Errorf("run(%q) = %d, want %d", tt.args, code, tt.code)
			}
			if diff := cmp.Diff(tt.stdout, stdout.String()); diff != "" {
				t.Errorf("run(%q) stdout (-want +got):\n%s", tt.args, diff)
			}
			if !strings.HasSuffix(stderr.String(), tt.stderr) || (tt.stderr == "" && stderr.Len() > 0) {
				t.Errorf("run(%q) stderr = %q, want it to end in %q", tt.args, stderr.String(), tt.stderr)
			}
		})
	}
}
