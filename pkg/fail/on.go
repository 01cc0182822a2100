// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package fail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Directory is the variable that names the directory with the files.
const Directory = "SHIM_FAILPOINTS"

// At is a failpoint.
func At(name string) error { return After(name, nil) }

// After is a failpoint after a step that returned err. It is passed if err is nil.
func After(name string, err error) error {
	dir := os.Getenv(Directory)
	if err != nil || dir == "" {
		return err
	}
	path := filepath.Join(dir, name)
	action := take(path)
	record(dir, name+" "+action)
	verb, argument, _ := strings.Cut(action, " ")
	switch verb {
	case "-":
		return nil
	case "error":
		return fmt.Errorf("failpoint %s", name)
	case "panic":
		panic("failpoint " + name)
	case "kill":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL) // cannot fail
		select {}
	case "delay":
		d, err := time.ParseDuration(argument)
		time.Sleep(d)
		return err
	case "hang":
		return hang(path + ".hang")
	}
	return fmt.Errorf("failpoint %s: action %q is not known", name, action)
}

// take removes the file at path and returns what it says, or "-" if there is none. Of several concurrent callers, one
// takes it.
func take(path string) string {
	action, err := os.ReadFile(path)
	if err != nil || os.Remove(path) != nil {
		return "-"
	}
	return strings.TrimSpace(string(action))
}

// record adds a line to the log. It panics if it cannot: a test that misses a line proves nothing.
func record(dir, line string) {
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return // the test is over
	}
	if err == nil {
		_, err = f.WriteString(line + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		panic("failpoints: " + err.Error())
	}
}

// hang makes the file at path and waits until it is removed.
func hang(path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(path); err != nil {
			return nil //nolint:nilerr // that is the end of the wait
		}
		time.Sleep(time.Millisecond)
	}
}
