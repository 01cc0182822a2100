// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

func (c *Process) lookup(r *native.Request) {
	if directories, name, search := c.program(); search {
		r.LookupIn(directories, name).Explain(c.notFound)
	} else {
		r.Lookup(name).Explain(c.notFound)
	}
}

// program returns the program's name and in which directories it is looked up, with a zero byte after each, as
// os/exec.LookPath does it. Without a search the name is the path.
func (c *Process) program() (directories, name string, search bool) {
	name = c.Args[0]
	switch {
	case strings.Contains(name, "/"):
		return "", name, false
	case name == "", name == ".", name == "..":
		return "", name, true
	}
	var list strings.Builder
	for _, e := range c.Env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok && path != "" {
			for directory := range strings.SplitSeq(path, string(filepath.ListSeparator)) {
				list.WriteString(filepath.Clean(directory))
				list.WriteByte(0)
			}
		}
	}
	return list.String(), name, true
}

func (c *Process) notFound(errno unix.Errno, detail uint32) error {
	name := c.Args[0]
	switch detail {
	case native.LookupStat:
		return &exec.Error{Name: name, Err: &fs.PathError{Op: "stat", Path: name, Err: errno}}
	case native.LookupNone:
		return &exec.Error{Name: name, Err: exec.ErrNotFound}
	case native.LookupDot:
		return &exec.Error{Name: name, Err: exec.ErrDot}
	}
	return &exec.Error{Name: name, Err: errno}
}

func (c *Process) exec(r *native.Request, env native.Word) {
	r.Exec(r.Strings(c.Args), env).Explain(func(errno unix.Errno, index uint32) error {
		directories, path, search := c.program()
		if list := strings.Split(directories, "\x00"); search && int(index) < len(list) {
			path = filepath.Join(list[index], path)
		}
		return &fs.PathError{Op: "exec", Path: path, Err: errno}
	})
}
