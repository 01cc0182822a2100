// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import "slices"

// program is what a container or an exec runs.
type program uint8

// The programs. All end by themselves but forever, copies, and those hostile ones that are not said to.
const (
	forever  program = iota // until it is killed
	succeeds                // at once, with 0
	fails                   // at once, with 7
	says                    // writes a line, and ends with 0
	copies                  // copies its input until that is closed, and ends with 0
	terminal                // ends with 3 if it has a terminal
	hungry                  // is killed for lack of memory

	// The hostile ones.
	stalls  // writes more than a fifo takes to a reader that does not read until it is told to, and ends with 0
	halts   // stops itself
	opens   // opens hundreds of files
	leaves  // ends with 0 and leaves a process that holds its output
	forks   // uses up the processes of its cgroup, with the dead that nobody collects
	fills   // fills /dev/shm
	starves // lets processes die for lack of memory, one after the other
)

var programNames = [...]string{
	"forever", "succeeds", "fails", "says", "copies", "terminal", "hungry", "stalls", "halts", "opens", "leaves",
	"forks", "fills", "starves",
}

func (p program) String() string { return programNames[p] }

// ofInit and ofExec are the hostile programs that an init and an exec may run.
var (
	ofInit = []program{opens, forks, fills, starves, stalls}
	ofExec = []program{stalls, halts, opens, leaves}
)

// hostile reports whether it is one of those.
func (p program) hostile() bool { return p >= stalls }

// crowds reports whether an exec beside it may find no room to start or to live in.
func (p program) crowds() bool { return p == forks || p == starves }

// endless reports whether it runs until it is killed, whatever else happens.
func (p program) endless() bool {
	return slices.Contains([]program{forever, halts, opens, forks, fills, starves}, p)
}

// waits reports whether it ends once somebody has closed its input or read its output.
func (p program) waits() bool { return p == copies || p == stalls }

// goesOn is what lets one that waits go on.
func (p program) goesOn() Op {
	if p == stalls {
		return Read
	}
	return CloseIO
}

// codes are the exit statuses with which it may end by itself.
func (p program) codes() []uint8 {
	switch p {
	case fails:
		return []uint8{7}
	case terminal:
		return []uint8{3}
	case hungry:
		return []uint8{killed}
	case leaves: // the second if it cannot fork
		return []uint8{0, 2}
	case succeeds, says, copies, stalls:
		return []uint8{0}
	case forever, halts, opens, forks, fills, starves:
	}
	return nil
}

// killed is the exit status after SIGKILL.
const killed = 128 + 9

// stalled is how much the program of that name writes: more than a pipe and a fifo hold.
const stalled = 8 * 64 << 10

// argv is the command line of a program.
func (p program) argv(hostPID bool) []string {
	const ever = "exec sleep 1000000"
	switch p {
	case forever:
		if hostPID { // a process that the kernel does not kill with init
			return []string{"sh", "-c", "sleep 1000000 & " + ever}
		}
		return []string{"sleep", "1000000"}
	case succeeds:
		return []string{"true"}
	case fails:
		return []string{"sh", "-c", "exit 7"}
	case says:
		return []string{"echo", "hello"}
	case copies:
		return []string{"cat"}
	case terminal:
		return []string{"sh", "-c", "test -t 0 && test -t 1 && exit 3"}
	case hungry:
		// A signal, or a freeze, cuts a read short.
		return []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1", "iflag=fullblock"}
	case stalls:
		return []string{"dd", "if=/dev/zero", "bs=64k", "count=8", "iflag=fullblock"}
	case halts:
		return []string{"sh", "-c", "kill -STOP $$; " + ever}
	case opens:
		return []string{"sh", "-c", `while [ $# -lt 900 ]; do set -- "$@" /dev/null; done; exec tail -f "$@"`}
	case leaves:
		return []string{"sh", "-c", "echo hello; sleep 1000000 & exit 0"}
	case forks:
		return []string{"sh", "-c", "(bomb() { bomb & bomb & wait; }; bomb) 2>/dev/null & " + ever}
	case fills:
		return []string{"sh", "-c", "dd if=/dev/zero of=/dev/shm/full bs=1M 2>/dev/null; " + ever}
	case starves:
		return []string{"sh", "-c", "while :; do dd if=/dev/zero of=/dev/null bs=128M count=1 2>/dev/null; sleep 0.2; done"}
	}
	return nil
}
