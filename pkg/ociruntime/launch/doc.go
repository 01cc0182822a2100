// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package launch starts a process in a container that runs, without starting an OCI runtime again.
//
// [Launcher.Start] runs the launcher program, which is a few kilobytes of code without a library, in a sealed memory
// file (program_amd64.c, image_amd64.go). It knows nothing: a request tells it which system calls to make in which
// order (program.h). All that there is to decide was decided in Go (steps.go), and what fails is explained in Go, in
// the words of libcontainer. docs/decisions/0004 says why it is safe.
//
//	shim ──start──▶ program ──fork──▶ in the v2 cgroup ──fork──▶ in the PID namespace ──execve──▶ the process
//	                signals           v1 cgroups, CPUs           session
//	                not dumpable      namespaces, terminal
//	                                  limits, filter,
//	                                  user, capabilities
//
// Each of these processes is a child of the shim (CLONE_PARENT). One that has forked ends at once; Start waits for it.
// The second waits for its limits, and the last for leave before it does anything, so one of which the shim never heard
// runs nothing.
//
// The last is born with the rights of its program: whoever traces it in the PID namespace gains none. A seccomp filter
// may forbid what is left to do there ([Command.FilterLast]).
//
// [Capture] is how the seccomp filter of a profile is obtained.
//
// # Goroutines and locks
//
// Start has no goroutine of its own but that of its context's end, which interrupt makes harmless once Start returns.
// attempt.mu guards which process is the current one against it; nothing that blocks happens under it. Capture has one
// goroutine with a thread of its own, which it waits for. Start waits for the program and for the end of its processes
// by Go's poller, thus without a thread. The reaper is held over the start of the first process alone; each other is
// owned once its parent told of it, and the reaper may collect what died before.
//
// # Promises
//
//   - When Start fails, no process of it is left, neither running nor to be waited for, but for one
//     of which its parent did not tell, because it was killed right after the fork, or did so later than the process
//     told of its own failure, or that does not die of SIGKILL within some seconds: that one is collected as an orphan.
//   - Start ends when its context does, also in a cgroup that is frozen.
//   - No descriptor of the shim but the standard streams gets into the container's PID namespace, only the program's
//     socket, which execve closes.
package launch
