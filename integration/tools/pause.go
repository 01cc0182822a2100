// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

//go:embed pause/pause.c
var pauseSource string

// Pause is where Build makes the program of pause containers, in the directory that Build returns.
func Pause(dir string) string {
	key := sha256.Sum256([]byte(pauseSource))
	return filepath.Join(dir, "pause-"+hex.EncodeToString(key[:4]))
}

// buildPause makes the program, statically linked and with nothing of Go in it: a pause container is measured, too.
func buildPause(ctx context.Context, dir string) error {
	name := Pause(dir)
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	part := name + ".part"
	cc := []string{"gcc"}
	if arch() != runtime.GOARCH {
		cc = strings.Fields(os.Getenv("CC")) // of hack/musl.sh
	}
	arg := append(slices.Clone(cc[1:]), "-static", "-Os", "-s", "-Wall", "-x", "c", "-o", part, "-")
	cmd := exec.CommandContext(ctx, cc[0], arg...)
	cmd.Stdin = strings.NewReader(pauseSource)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the pause program (gcc, libc6-dev): %w\n%s", err, out)
	}
	return os.Rename(part, name)
}
