// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/containerd/console"
)

// Terminal is a program that a person has started on a terminal.
type Terminal struct {
	cmd    *exec.Cmd
	master console.Console
	output Buffer
	exited <-chan struct{}
}

// NewTerminal starts a program on a terminal of 30 lines and 90 columns.
func NewTerminal(cmd *exec.Cmd) (*Terminal, error) {
	master, name, err := console.NewPty()
	if err != nil {
		return nil, err
	}
	slave, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = slave.Close() }() // the program has it
	t := &Terminal{cmd: cmd, master: master}
	if err := t.Resize(30, 90); err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if t.exited, err = Spawn(cmd); err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			_, _ = t.output.Write(buf[:n]) // it never fails
			if err != nil {
				return // the program has ended
			}
		}
	}()
	return t, nil
}

// Resize tells the program of another size.
func (t *Terminal) Resize(lines, columns uint16) error {
	return t.master.Resize(console.WinSize{Height: lines, Width: columns})
}

// Type types text.
func (t *Terminal) Type(text string) error {
	_, err := t.master.Write([]byte(text))
	return err
}

// Shown is all that the terminal has shown.
func (t *Terminal) Shown() string { return t.output.String() }

// Forget makes Shown begin anew.
func (t *Terminal) Forget() { t.output.Reset() }

// Wait waits for the end of the program, closes the terminal, and returns the exit status.
func (t *Terminal) Wait() (int, error) {
	err := Poll(func() error {
		select {
		case <-t.exited:
			return nil
		default:
			return fmt.Errorf("%v does not end; it shows %q", t.cmd.Args, t.Shown())
		}
	})
	if err != nil {
		return 0, err
	}
	return t.cmd.ProcessState.ExitCode(), t.master.Close()
}
