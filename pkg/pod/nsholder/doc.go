// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package nsholder starts the process that holds the namespaces of a pod where the shim's main thread cannot: a PID
// namespace needs a first process, and a process with threads cannot join a user namespace.
//
// The process runs the holder program, a few hundred bytes of code without a library, in a sealed memory file
// (program_amd64.c, pkg/memprog). It makes and joins the namespaces, gives up its user, its capabilities, its root and
// all descriptors, and sleeps until it is killed. It is the parent of what the containers of the pod leave behind, and
// ignores SIGCHLD, so that the kernel reaps them; no signal wakes it. It dies with the shim's main thread.
//
//	main thread ──start──▶ program ──fork──▶ in the PID namespace
//	                       root, network,    user, capabilities, not dumpable, dies with its parent
//	                       user, IPC, UTS
//
// Both of these processes are children of the shim (CLONE_PARENT). One that has forked ends, and Start waits for it.
//
// # Goroutines and locks
//
// Each Holder has one goroutine, its waiter, which ends when the process is dead and waited for. There is no lock.
//
// # Promises
//
//   - When Start fails, no process of it is left, neither running nor to be waited for, but for one whose parent was
//     killed before it told of it: that one ends by itself and is collected as an orphan.
//   - A process in the pod can neither trace the holder nor find anything of the host through it: it is not dumpable,
//     its root is empty, its mount namespace has nothing else, and its program cannot be changed.
package nsholder
