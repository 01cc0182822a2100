// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// PidText returns the name of a process in /proc.
func PidText(pid int) string { return strconv.Itoa(pid) }

// ProcFile returns the path of a file of a process.
func (r Root) ProcFile(pid int, name string) string { return r.Path("proc", PidText(pid), name) }

// Pids lists the processes, among them the kernel's own and those that have ended.
func (r Root) Pids() (pids []int) {
	entries, _ := os.ReadDir(r.Path("proc")) // without it other checks fail
	for _, d := range entries {
		if pid, err := strconv.Atoi(d.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ErrHidden means that a command line could not be read in time.
var ErrHidden = errors.New("cannot be read in time")

// CommandLine is the beginning of the command line of a process. It is empty for the kernel's own and for zombies.
type CommandLine struct {
	Text string // with a zero byte after each argument
	Cut  bool   // there is more
}

// Args returns the arguments, the last of which may be cut off.
func (c CommandLine) Args() []string {
	return strings.Split(strings.TrimSuffix(c.Text, "\x00"), "\x00")
}

// CommandLine reads at most 64 KiB of a command line. The kernel takes a lock of the process for that, which somebody
// can keep for ever, as with a FUSE mapping: after a second, or when ctx ends, the error is ErrHidden. A thread waits
// on then.
func (r Root) CommandLine(ctx context.Context, pid int) (CommandLine, error) {
	const most, patience = 64 << 10, time.Second
	type result struct {
		text []byte
		err  error
	}
	read := make(chan result, 1)
	go func() { // it cannot be ended before the read
		text, err := readStart(r.ProcFile(pid, "cmdline"), most+1)
		read <- result{text, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case got := <-read:
		return CommandLine{Text: string(got.text[:min(len(got.text), most)]), Cut: len(got.text) > most}, got.err
	case <-ctx.Done():
		return CommandLine{}, fmt.Errorf("command line of process %d: %w", pid, ErrHidden)
	}
}

func readStart(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	return io.ReadAll(io.LimitReader(f, most))
}

// FlagValue returns the value of a flag of a command line, with one dash or two, in the same argument or the next.
func FlagValue(args []string, names ...string) string {
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		for _, n := range names {
			if name != "-"+n && name != "--"+n {
				continue
			}
			if joined {
				return value
			}
			if i+1 < len(args) {
				return args[i+1]
			}
		}
	}
	return ""
}

// Stat is what /proc/PID/stat says of a process.
type Stat struct {
	Dead    bool   // it has ended, and its parent has not reaped it
	Parent  int    // pid; 0: none, or one of another PID namespace
	Started uint64 // in ticks of the clock since the machine began
}

// Stat reads what the kernel says of a process (proc_pid_stat(5)).
func (r Root) Stat(pid int) (s Stat, err error) {
	text, err := ReadText(r.ProcFile(pid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	// Fields are counted from 1. The second is the name in parentheses, which may have any bytes in it.
	const state, parent, started, first = 3, 4, 22, 3
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= started-first {
		return Stat{}, fmt.Errorf("stat of process %d: %q", pid, text)
	}
	s.Dead = strings.ContainsAny(fields[state-first], "ZXx")
	if s.Parent, err = strconv.Atoi(fields[parent-first]); err == nil {
		s.Started, err = strconv.ParseUint(fields[started-first], 10, 64)
	}
	if err != nil {
		return Stat{}, fmt.Errorf("stat of process %d: %w", pid, err)
	}
	return s, nil
}
