// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// shimProcess is the process of a shim. No other process ever has both.
type shimProcess struct {
	Pid   int    `json:",omitempty"` // 0: the shim that wrote the index did not say
	Start string `json:",omitempty"` // starttime of proc_pid_stat(5)
}

// thisProcess is the shim, if it is this process.
func thisProcess() shimProcess {
	p := shimProcess{Pid: os.Getpid()}
	_, start, err := stat(p.Pid)
	if err != nil {
		return shimProcess{}
	}
	p.Start = start
	return p
}

// lives reports whether the process has not ended. An error means that it is not known.
func (p shimProcess) lives() (bool, error) {
	if p.Pid == 0 {
		return false, nil
	}
	state, start, err := stat(p.Pid)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	return err == nil && start == p.Start && state != "Z" && state != "X", err
}

// stat reads /proc/PID/stat. The name of the program, in parentheses, may have any characters.
func stat(pid int) (state, start string, err error) {
	name := fmt.Sprintf("/proc/%d/stat", pid)
	text, err := os.ReadFile(name)
	if err != nil {
		return "", "", err
	}
	const first, starttime = 3, 22 // the numbers of fields, of which the first is the one after the name
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) <= starttime-first {
		return "", "", fmt.Errorf("%s: %q has too few fields", name, text)
	}
	return fields[0], fields[starttime-first], nil
}
