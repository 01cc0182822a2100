// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// writableByOthers are the bits of a mode that let others than the owner write.
const writableByOthers = 0o022

// runnable returns the path of a program without symbolic links, if nobody except root and the user of this program can
// change what it does: both own it and the directories to it, and nobody else can replace anything there.
func runnable(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	for at := resolved; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", err
		}
		if err := unchangeable(at, info); err != nil {
			return "", err
		}
		if at == filepath.Dir(at) {
			return resolved, nil
		}
	}
}

func unchangeable(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s does not belong to root", path)
	}
	// In a directory with the sticky bit others cannot replace what is root's.
	sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	if info.Mode().Perm()&writableByOthers != 0 && !sticky {
		return fmt.Errorf("%s can be written by others than its owner (%04o)", path, info.Mode().Perm())
	}
	return nil
}

// runnableDaemon returns the binary of a process, or what has replaced it since. It is not run through the link in
// /proc, which may be another process's by now.
func runnableDaemon(d Daemon) (string, error) {
	exe, err := os.Readlink(d.Exe)
	if err != nil {
		return "", err
	}
	return runnable(strings.TrimSuffix(exe, " (deleted)"))
}

// sameMounts reports whether a process sees the mounts that this program does: a path is the same file for both.
func sameMounts(d Daemon) bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	other, err := os.Readlink(filepath.Join(filepath.Dir(d.Exe), "ns/mnt"))
	return err == nil && own == other
}
