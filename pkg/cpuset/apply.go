// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// apply does the write, in one call, for the kernel takes each call as a whole list. It makes no file. A cgroup that is gone
// is errdefs.ErrNotFound.
func (w write) apply() error {
	f, err := os.OpenFile(filepath.Join(w.dir, string(w.resource)), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(w.set.String() + "\n")
		err = errors.Join(err, f.Close())
	}
	if gone(err) {
		err = errdefs.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("write %q to %s of %s: %w", w.set, w.resource, w.dir, err)
	}
	return nil
}
