// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import "fmt"

// program is what a container or an exec runs.
type program string

const (
	forever  program = "forever"
	succeeds program = "succeeds"
	fails    program = "fails"
	says     program = "says"     // writes a line
	counts   program = "counts"   // writes a line now and then
	copies   program = "copies"   // its input, until that is closed
	terminal program = "terminal" // ends with 3 if it has a terminal
	hungry   program = "hungry"   // is killed for lack of memory

	// The hostile ones.
	stalls  program = "stalls"  // writes more than a fifo takes to a reader that does not read until it is told to
	halts   program = "halts"   // stops itself
	opens   program = "opens"   // hundreds of files
	leaves  program = "leaves"  // ends and leaves a process that holds its output
	forks   program = "forks"   // uses up the processes of its cgroup, with the dead that nobody collects
	fills   program = "fills"   // /dev/shm
	starves program = "starves" // lets processes die for lack of memory, one after the other
)

// What an init and an exec may run. The simple ones are for both.
var (
	simple       = []program{forever, succeeds, fails, says, counts, copies, terminal}
	hostileInits = []program{opens, forks, fills, starves, stalls}
	hostileExecs = []program{stalls, halts, opens, leaves}
)

// behaviour is what the model and the worker know of a program.
type behaviour struct {
	argv    []string
	codes   []uint8 // with which it may end by itself; none: it runs until it is killed
	goesOn  Op      // what lets it end; empty: it does not wait for that
	memory  uint64  // limit in bytes; 0: none
	pids    int64   // limit; 0: none
	hostile bool
}

// killed is the exit status after SIGKILL.
const killed = 128 + 9

// stalled is how much the program of that name writes: more than a pipe and a fifo hold.
const stalled = 8 * 64 << 10

// counted is how many lines the program that counts writes: it takes as long as several other operations.
const counted = 300

const ever = "exec sleep 1000000"

var behaviours = map[program]behaviour{
	forever:  {argv: []string{"sleep", "1000000"}},
	succeeds: {argv: []string{"true"}, codes: []uint8{0}},
	fails:    {argv: shell("exit 7"), codes: []uint8{7}},
	says:     {argv: []string{"echo", "hello"}, codes: []uint8{0}},
	counts: {
		argv:  shell(fmt.Sprintf("n=0; while [ $n -lt %d ]; do n=$((n+1)); echo $n; usleep 1000; done", counted)),
		codes: []uint8{0, 2}, // 2: it cannot fork
	},
	copies:   {argv: []string{"cat"}, codes: []uint8{0}, goesOn: CloseIO},
	terminal: {argv: shell("test -t 0 && test -t 1 && exit 3"), codes: []uint8{3}},
	hungry: {
		// A signal, or a freeze, cuts a read short.
		argv:  []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1", "iflag=fullblock"},
		codes: []uint8{killed}, memory: 24 << 20,
	},
	stalls: {
		argv:  []string{"dd", "if=/dev/zero", "bs=64k", "count=8", "iflag=fullblock"},
		codes: []uint8{0}, goesOn: Read, hostile: true,
	},
	halts: {argv: shell("kill -STOP $$; " + ever), hostile: true},
	opens: {
		argv:    shell(`while [ $# -lt 900 ]; do set -- "$@" /dev/null; done; exec tail -f "$@"`),
		hostile: true,
	},
	leaves: {argv: shell("echo hello; sleep 1000000 & exit 0"), codes: []uint8{0, 2}, hostile: true}, // 2: it cannot fork
	forks:  {argv: shell("(bomb() { bomb & bomb & wait; }; bomb) 2>/dev/null & " + ever), hostile: true, pids: 40},
	fills:  {argv: shell("dd if=/dev/zero of=/dev/shm/full bs=1M 2>/dev/null; " + ever), hostile: true, memory: 128 << 20},
	starves: {
		argv:    shell("while :; do dd if=/dev/zero of=/dev/null bs=128M count=1 2>/dev/null; sleep 0.2; done"),
		hostile: true, memory: 24 << 20,
	},
}

func shell(script string) []string { return []string{"sh", "-c", script} }

// crowds reports whether an exec beside it may find no room to start or to live in.
func (p program) crowds() bool { return p == forks || p == starves }

// endless reports whether it runs until it is killed, whatever else happens.
func (p program) endless() bool { return len(behaviours[p].codes) == 0 }

// waits reports whether it ends once somebody has closed its input or read its output.
func (p program) waits() bool { return behaviours[p].goesOn != "" }

// limited reports whether it needs a limit.
func (p program) limited() bool { return behaviours[p].memory > 0 || behaviours[p].pids > 0 }

// argv is the command line of a program. With the machine's PIDs, forever has a process that the kernel does not kill
// with init.
func (p program) argv(hostPID bool) []string {
	if hostPID && p == forever {
		return shell("sleep 1000000 & " + ever)
	}
	return behaviours[p].argv
}
