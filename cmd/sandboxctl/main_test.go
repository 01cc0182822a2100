// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// A command that waits for what does not come hears the first signal, and cannot do anything about it.
func TestSignals_SecondOneEndsWhatHangs(t *testing.T) {
	const hang = "SANDBOXCTL_TEST_HANG"
	if os.Getenv(hang) != "" {
		ctx, _ := untilSignal()
		_, _ = os.Stdout.WriteString("r")
		<-ctx.Done()
		_, _ = os.Stdout.WriteString("h")
		select {}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), hang+"=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 1)
	for _, want := range []string{"r", "h"} { // it runs; it heard the first signal
		if _, err := io.ReadFull(out, said); err != nil || string(said) != want {
			t.Fatalf("the program said %q, %v, want %q", said, err, want)
		}
		if err := cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	soon, often := time.After(30*time.Second), time.Tick(20*time.Millisecond)
	for {
		select {
		case err := <-ended:
			exit, _ := errors.AsType[*exec.ExitError](err)
			if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != unix.SIGINT {
				t.Errorf("the program ended with %v, want SIGINT", err)
			}
			return
		case <-often: // the first signal may still be handled
			_ = cmd.Process.Signal(unix.SIGINT) // it may have ended
		case <-soon:
			_ = cmd.Process.Kill()
			t.Fatalf("the program still runs after several signals: %v", <-ended)
		}
	}
}

// What the documentation tells people to type is understood, and each command is in it.
func TestDocs_NameCommandsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/sandboxctl.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`(?m)^(?:# |    )sandboxctl (.*)$`)
	var seen []string
	for _, m := range example.FindAllStringSubmatch(string(text), -1) {
		line, _, _ := strings.Cut(m[1], " | ")
		cmd, args, err := root().Find(strings.Fields(line))
		if err != nil || cmd.Name() == "sandboxctl" {
			t.Errorf("sandboxctl %s: %v", line, err)
			continue
		}
		if err := cmd.ParseFlags(args); err != nil {
			t.Errorf("sandboxctl %s: %v", line, err)
		}
		if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
			t.Errorf("sandboxctl %s: %v", line, err)
		}
		seen = append(seen, cmd.Name())
	}
	for _, cmd := range root().Commands() {
		if !slices.Contains(seen, cmd.Name()) {
			t.Errorf("docs/sandboxctl.md has no example of %s", cmd.Name())
		}
	}
	root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(string(text), "`--"+f.Name+"`") {
			t.Errorf("docs/sandboxctl.md does not name --%s", f.Name)
		}
	})
}

// Help is there instead of manual pages.
func TestHelp_SaysWhatACommandDoes(t *testing.T) {
	for _, cmd := range root().Commands() {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s has no short or long help, or no example", cmd.Name())
		}
		const width = 92
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if len([]rune(line)) > width {
				t.Errorf("help of %s: %q is longer than %d", cmd.Name(), line, width)
			}
		}
	}
}

func TestCompletion_IsThereForEachShell(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		var out strings.Builder
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"completion", shell})
		if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), "sandboxctl") {
			t.Errorf("completion %s: %v", shell, err)
		}
	}
}
