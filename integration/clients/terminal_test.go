// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/script"
)

// terminal is a client that a person has started.
type terminal struct {
	*script.Terminal
	s *session
}

func (s *session) terminal(arg ...string) *terminal {
	program := ""
	switch d := s.daemon.(type) {
	case *dockerd:
		program = filepath.Join(d.bin, "docker")
	case *nerdctl:
		program = filepath.Join(d.bin, "nerdctl")
	}
	return &terminal{s.Terminal(program, arg...), s}
}

// shows waits until n times text has been shown, and what was shown ends with end.
func (t *terminal) shows(n int, text, end string) {
	t.s.Must(harness.Poll(func() error { return t.shown(n, text, end) }), "wait")
}

func (t *terminal) shown(n int, text, end string) error {
	shown := t.plain()
	if strings.Count(shown, text) < n || !strings.HasSuffix(shown, end) {
		return fmt.Errorf("the terminal shows %q, want %q %d times, and %q at the end", shown, text, n, end)
	}
	return nil
}

// ends waits for the client's end, with an exit status, and puts what was shown into the account.
func (t *terminal) ends(status int) {
	t.Ends(status)
	t.s.Note(t.plain())
}

// plain is what was shown without the times that busybox asks where the cursor is, or shows its prompt again because
// the size has changed.
func (t *terminal) plain() string {
	return strings.NewReplacer("\x1b[6n", "", "\r"+prompt+"\x1b[J", "").Replace(t.Shown())
}

// interrupts types control-C until there are n prompts. The terminal must show each. One is not always enough, with
// any runtime: the shell forgets one that comes while it forks a command and has not yet given it the terminal.
func (t *terminal) interrupts(n int) {
	const most = 5
	for range most {
		echoed := strings.Count(t.Shown(), "^C")
		t.Types("\x03")
		t.shows(echoed+1, "^C", "")
		if harness.PollFor(harness.Slow(2*time.Second), func() error { return t.shown(n, prompt, prompt) }) == nil {
			return
		}
	}
	t.s.Fatalf("no prompt after %d times control-C: %q", most, t.Shown())
}

const prompt = "/ # "

func TestDocker_Terminal(t *testing.T) {
	const box = "docker run -d --name box busybox sleep 1000"
	compare(t, shared, []clientCase{
		{
			name: "run -it, resize",
			run: func(s *session) {
				sh := s.terminal("run", "-it", "--name", "box", "busybox")
				sh.shows(1, prompt, prompt)
				sh.Types("stty size\n")
				sh.shows(1, "30 90\r\n", prompt)
				// docker asks to be told of sizes only once it has handed on the first: one that comes just then is lost.
				s.Must(harness.Poll(func() error {
					sh.Resizes(39, 100)
					sh.Resizes(40, 100)
					sh.Types("stty size\n")
					if !strings.Contains(sh.Shown(), "40 100\r\n") {
						return fmt.Errorf("the terminal shows %q", sh.Shown())
					}
					return nil
				}), "resize")
				sh.Forget() // how often it asked differs
				sh.Types("exit 7\n")
				sh.ends(7)
				s.Forget()
			},
		},
		{
			name: "run -it: control-C, control-D",
			run: func(s *session) {
				sh := s.terminal("run", "-it", "--name", "box", "busybox")
				sh.shows(1, prompt, prompt)
				sh.Types("echo sleeps; sleep 1000\n")
				sh.shows(1, "sleeps\r\n", "sleeps\r\n")
				sh.Types("\x03")
				sh.shows(2, prompt, prompt)
				sh.Types("\x04")
				sh.ends(130)
			},
		},
		{
			name: "exec -it",
			run: func(s *session) {
				s.Shell(box)
				sh := s.terminal("exec", "-it", "box", "sh")
				sh.shows(1, prompt, prompt)
				sh.Types("tty; stty size; exit 5\n")
				sh.shows(1, "/dev/pts/0\r\n30 90\r\n", "30 90\r\n")
				sh.ends(5)
			},
		},
		{
			name: "exec -it: control-C right after a line, 30 times",
			run: func(s *session) {
				s.Shell(box)
				sh := s.terminal("exec", "-it", "box", "sh")
				sh.shows(1, prompt, prompt)
				for n := range 30 {
					sh.Types(fmt.Sprintf("echo line-$((%d + 1000)); sleep 1000\n", n))
					sh.shows(1, fmt.Sprintf("line-%d\r\n", n+1000), "\r\n")
					sh.interrupts(n + 2)
				}
				sh.Types("exit 3\n")
				sh.ends(3)
				s.Forget() // how often it took another one differs
			},
		},
		{
			name: "exec -it: the end of the container",
			run: func(s *session) {
				s.Shell(box)
				sh := s.terminal("exec", "-it", "box", "sh")
				sh.shows(1, prompt, prompt)
				s.Shell("docker kill box")
				sh.ends(137)
			},
		},
		{
			name: "run -t without -i, control-C to docker",
			run: func(s *session) {
				sh := s.terminal("run", "--name", "box", "busybox", "sh", "-c", "trap 'exit 6' INT; echo ready; while :; do sleep 0.1; done")
				sh.shows(1, "ready\r\n", "ready\r\n")
				sh.Types("\x03")
				sh.ends(6)
			},
		},
	})
}
