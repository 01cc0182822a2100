// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containerd/containerd/api/types/runc/options"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// subject is a runtime under measurement.
type subject struct {
	name    string // heading of its column
	runtime string // as containerd knows it
	shim    string // path of the shim's binary
	inner   string // binary that runs as a container's init before the container's program does
	options any    // runtime options, nil for none
	v1Only  bool   // cannot run where cgroup v2 is mounted beside v1
	host    *host
}

// The first columns. A third is there when crun is.
const (
	reference = 0
	ours      = 1
	withCrun  = 2
)

// crun is the name of the column of runc's shim with crun.
const crun = "crun"

// subjects lists the columns: the reference first, as the others are divided by it.
func subjects(c config) []*subject {
	runc := filepath.Join(c.tools, "runc")
	stock := filepath.Join(c.tools, "containerd-shim-runc-v2")
	mine := &subject{name: "sandbox", runtime: harness.Ours, shim: c.shim, inner: c.shim}
	if c.against != "" {
		return []*subject{{name: "before", runtime: harness.Ours, shim: c.against, inner: c.against}, mine}
	}
	list := []*subject{
		{
			name: "runc", runtime: "io.containerd.runc.v2", shim: stock, inner: runc,
			options: &options.Options{BinaryName: runc},
		},
		mine,
	}
	if path, err := exec.LookPath(crun); c.crun && err == nil {
		list = append(list, &subject{
			name: crun, runtime: "io.containerd.runc.v2", shim: stock, inner: path,
			options: &options.Options{BinaryName: path}, v1Only: true,
		})
	}
	return list
}

// isShim reports whether s runs this project's shim, which the reference does with -against.
func (s *subject) isShim() bool { return s.runtime == harness.Ours }

// readAnew has the binaries read from the disk when they are run next. One that has just been built or copied lies in
// the page cache in large folios, which the kernel maps as a whole: its processes would have megabytes in their memory
// that they do not have on a machine that was booted since.
func readAnew(list []*subject) error {
	for _, s := range list {
		for _, path := range []string{s.shim, s.inner} {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			err = errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
			if err = errors.Join(err, f.Close()); err != nil {
				return fmt.Errorf("page cache of %s: %w", path, err)
			}
		}
	}
	return nil
}
