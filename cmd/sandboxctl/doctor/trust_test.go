// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
)

func TestRunnable(t *testing.T) {
	for _, tt := range []struct {
		what string
		do   func(x *tree)
		err  string
	}{
		{"root's alone", func(*tree) {}, ""},
		{"a directory with the sticky bit", func(x *tree) { x.chmod("usr", 0o777|os.ModeSticky) }, ""},
		{"others can write it", func(x *tree) { x.chmod("usr/bin/"+program, 0o757) }, "written by others"},
		{"a group can write it", func(x *tree) { x.chmod("usr/bin/"+program, 0o775) }, "written by others"},
		{"others can write its directory", func(x *tree) { x.chmod("usr/bin", 0o777) }, "usr/bin can be written"},
		{"others can write a directory above", func(x *tree) { x.chmod("usr", 0o777) }, "usr can be written"},
		{"another user's", func(x *tree) { x.must(os.Chown(x.path("usr/bin/"+program), 1000, 1000)) }, "does not belong to root"},
		{"in another user's directory", func(x *tree) { x.must(os.Chown(x.path("usr/bin"), 1000, 1000)) }, "does not belong to root"},
		{"a link to what others can write", func(x *tree) {
			x.write("evil/x", "")
			x.chmod("evil/x", 0o777)
			x.remove("usr/bin/" + program)
			x.link("../../evil/x", "usr/bin/"+program)
		}, "evil/x can be written"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			x := newTree(t)
			tt.do(x)
			_, err := runnable(x.path("usr/bin/" + program))
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("runnable: %v, want %q", err, tt.err)
			}
		})
	}
}

// The binary of a process in a container, or one that others can write, is not run to print a configuration.
func TestDumpConfig_RunsNothingOfOthers(t *testing.T) {
	x := newTree(t)
	x.write("usr/bin/containerd", "#!/bin/sh\necho ran >"+x.path("ran")+"\n")
	x.chmod("usr/bin/containerd", 0o777)
	mounts, err := os.Readlink("/proc/self/ns/mnt")
	x.must(err)
	x.link(x.path("usr/bin/containerd"), "p/exe")
	d := Daemon{Pid: 1, Exe: x.path("p/exe"), Args: []string{"containerd"}, Dir: "/"}
	if _, err := dumpConfig(t.Context(), d); !errors.Is(err, errOtherMounts) {
		t.Errorf("of a process whose mounts are not known: %v, want %v", err, errOtherMounts)
	}
	x.link(mounts, "p/ns/mnt")
	if _, err := dumpConfig(t.Context(), d); err == nil || !strings.Contains(err.Error(), "written by others") {
		t.Errorf("of a binary that others can write: %v, want that it is refused", err)
	}
	if _, err := os.Stat(x.path("ran")); err == nil {
		t.Error("the binary was run")
	}
	x.chmod("usr/bin/containerd", 0o755)
	if _, err := dumpConfig(t.Context(), d); err != nil {
		t.Errorf("of root's: %v", err)
	}
	if _, err := os.Stat(x.path("ran")); err != nil {
		t.Errorf("root's binary was not run: %v", err)
	}
	x.remove("p/exe")
	x.link(x.path("usr/bin/containerd")+" (deleted)", "p/exe")
	if _, err := dumpConfig(t.Context(), d); err != nil {
		t.Errorf("of what has replaced the binary: %v", err)
	}
}

// The checks print names and messages of others, which do nothing to a terminal.
func TestWrite_IsPrintable(t *testing.T) {
	x := newTree(t)
	x.write("usr/bin/"+program, "#!/bin/sh\nprintf 'a\\033[2Jb\\nhandlers ok' >&2; exit 1\n")
	x.mountLine("default/dead/rootfs/\x1b]0;x\x07")
	r := Examine(context.Background(), x.config())
	var out bytes.Buffer
	x.must(write(&out, &cli.Options{Output: cli.TableOutput}, r))
	for line := range strings.Lines(out.String()) {
		if text := strings.TrimSuffix(line, "\n"); cli.Printable(text) != text || strings.HasPrefix(line, "handlers ok") {
			t.Errorf("line %q, want nothing in it that a terminal obeys", text)
		}
	}
	for _, want := range []string{"a\ufffd[2Jb\ufffdhandlers ok", "rootfs/\ufffd]0;x\ufffd"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q, want %q in it", out.String(), want)
		}
	}
}
