// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd

import (
	"fmt"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/protobuf/proto"
)

// DeleteCommand runs the shim's delete command for a bundle, as containerd does when the shim is gone, and decodes its
// answer. What it writes to stderr is a warning in containerd's log. Stdin is empty, and the command gets neither
// options nor the directory of the sockets.
func (f *Fake) DeleteCommand(b *Bundle) (*task.DeleteResponse, error) {
	f.Helper()
	r, _, err := f.DeleteCommandIn(b)
	return r, err
}

// DeleteCommandIn is DeleteCommand with further variables in the environment. It returns also what the command wrote to
// stderr.
func (f *Fake) DeleteCommandIn(b *Bundle, env ...string) (*task.DeleteResponse, string, error) {
	f.Helper()
	out, errOut, err := f.command(b, append(env, "MAX_SHIM_VERSION=2"), nil, "-id", b.ID, "-bundle", b.Path, "delete")
	if err != nil {
		return nil, "", err
	}
	r := &task.DeleteResponse{}
	if err := proto.Unmarshal(out, r); err != nil {
		return nil, "", fmt.Errorf("answer %q: %w", out, err)
	}
	return r, string(errOut), nil
}
