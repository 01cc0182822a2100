// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/process"
)

// deleteTimeout is below the 5 s after which containerd kills `delete` (io.containerd.timeout.shim.cleanup), by a
// second for the start of this process.
const deleteTimeout = 4 * time.Second

// deleteBundle answers `delete`: it removes the container with r, and writes a DeleteResponse to stdout. containerd
// calls it twice, and for all containers of a pod at the same time, and removes the bundle when it succeeds.
func deleteBundle(f flags, stdout io.Writer, r cleanup.Request) error {
	log.L.Logger.SetOutput(os.Stderr) // containerd logs it as a warning
	log.L.Logger.SetLevel(log.WarnLevel)
	answer, err := removeBundle(f, r)
	if err != nil {
		return fmt.Errorf("delete %q: %w", f.ID, err)
	}
	_, err = stdout.Write(answer)
	return err
}

func removeBundle(f flags, r cleanup.Request) (answer []byte, err error) {
	r.Namespace, r.ID = f.Namespace, f.ID
	if r.Bundle, err = bundleOf(f); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deleteTimeout)
	defer cancel()
	pid, exit, err := r.Run(ctx)
	// This comes after Run, which may end the daemon, and even if Run failed: containerd removes the bundle of a failed
	// create.
	if err := bootstrap.RemoveSocket(ctx, r.Bundle); err != nil {
		log.L.WithError(err).Warn("the shim's socket may be left")
	}
	if err != nil {
		return nil, err
	}
	return deleteAnswer(pid, exit)
}

// deleteAnswer returns the DeleteResponse of a container's init.
func deleteAnswer(pid int, exit process.Exit) ([]byte, error) {
	return proto.Marshal(&taskapi.DeleteResponse{
		Pid: uint32(pid), ExitStatus: uint32(exit.Status), ExitedAt: timestamppb.New(exit.At),
	})
}

// bundleOf returns -bundle, or the working directory if that is the container's.
func bundleOf(f flags) (string, error) {
	if f.bundle != "" {
		return filepath.Clean(f.bundle), nil
	}
	cwd, err := os.Getwd()
	if err == nil && filepath.Base(cwd) != f.ID {
		err = fmt.Errorf("-bundle is not given and the working directory %q is not that of id %q: %w",
			cwd, f.ID, errdefs.ErrInvalidArgument)
	}
	return cwd, err
}
