// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

// #include "program.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Request is what the program does: steps, and the data that they refer to. The first step that fails ends it. An
// argument is a number, a Word, or data whose address the step gets: a string or a []byte.
type Request struct {
	// Thaw is a file cgroup.procs through which a killed process is moved, because it does not die where it is frozen
	// (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst); "" for none.
	Thaw string

	steps     []*Step
	unused    []Step // made at once, since an init has hundreds
	data      []byte
	strings   map[string]Word // long ones in data, each once: one may come with each mount
	addresses []int           // offsets in data of words that hold an offset in data
	hasZero   bool            // a string has a zero byte, at which the kernel would cut it
}

// Step is one step of a request.
type Step struct {
	index     int32
	addresses uint8 // bits of the arguments that are addresses
	reported  bool  // it is a fork or a wait, of which the caller knows
	op        uint64
	call      uint64
	args      [6]uint64
	tolerated uint64
	condition int64
	fd        uint64
	explain   func(errno unix.Errno, detail uint32) error
	grant     func(pid int) error
}

// Word is a number, or the address of data.
type Word struct {
	value   uint64 // an offset in the data of the request, or the number
	address bool
}

const wordSize = 8

// Call adds a system call.
func (r *Request) Call(number int, args ...any) *Step {
	s := r.add(C.OP_CALL, args...)
	s.call = uint64(number)
	return s
}

// Fork adds a fork, after which the child continues, in new namespaces (CLONE_NEW…).
func (r *Request) Fork(namespaces int) *Step { return r.add(C.OP_FORK, 0, namespaces) }

// ForkInto adds a fork into the cgroup of a descriptor, and into new namespaces (CLONE_NEW…).
func (r *Request) ForkInto(cgroup, namespaces int) *Step {
	return r.add(C.OP_FORK, cgroup+1, namespaces)
}

// Wait adds a stop until the caller knows the process, and has called grant with its pid. grant may be nil.
func (r *Request) Wait(grant func(pid int) error) { r.add(C.OP_WAIT).grant = grant }

// HandleSignals has signals that ask a process to end do so until it runs its program, unless they are ignored: to the
// first process of a PID namespace the kernel sends none without a handler (pid_namespaces(7)).
func (r *Request) HandleSignals() { r.add(C.OP_SIGNALS) }

// Hold adds a stop at which [Run.Execute] returns the process. [Run.Resume] lets it continue.
func (r *Request) Hold() { r.add(C.OP_HOLD) }

// CheckInode adds a check that the descriptor is a file of the type (S_IFMT of inode(7)) and device number. If magic is
// not 0, it must be the inode of that number in a file system with that type of statfs(2).
func (r *Request) CheckInode(fd int, fileType uint32, device, magic, inode uint64) *Step {
	return r.add(C.OP_INODE, fd, fileType, device, magic, inode)
}

// CheckNotProc adds a check that the file of a descriptor is not in a procfs.
func (r *Request) CheckNotProc(fd int) *Step { return r.add(C.OP_NOT_PROC, fd) }

// Make adds a step that makes path in the tree of a directory, whose root it cannot leave, and opens it with O_PATH. It
// is a directory, or an empty file if descriptor like is a file; -1 for no descriptor.
func (r *Request) Make(root int, name string, like int) *Step {
	return r.add(C.OP_MAKE, root, path.Clean("/"+name), like)
}

// CheckCwd adds a check that the working directory is below the root. The error is ENOENT otherwise.
func (r *Request) CheckCwd() *Step { return r.add(C.OP_CHECK_CWD) }

// The detail of an error of Lookup and LookupIn. It has another value if the path of Lookup is not executable.
const (
	LookupStat = C.LOOKUP_STAT // there is no such file, or no permission to look
	LookupNone = C.LOOKUP_NONE // there is none in PATH
	LookupDot  = C.LOOKUP_DOT  // the one in PATH is relative to the working directory
)

// Lookup chooses a program by its path.
func (r *Request) Lookup(path string) *Step { return r.add(C.OP_LOOKUP, 0, path) }

// LookupIn chooses the first file of that name in a list of directories that is executable. The list has a zero byte
// after each directory. Name and directories are clean paths (filepath.Clean).
func (r *Request) LookupIn(directories, name string) *Step {
	return r.add(C.OP_LOOKUP, []byte(directories), name) // bytes adds the byte that ends the list
}

// Exec runs the file that was looked up; it is the last step. If execve(2) fails, the process prints the error, and
// ends with status 255. The detail is the index of the directory.
func (r *Request) Exec(args, env Word) *Step { return r.add(C.OP_EXEC, args, env) }

// ExecInit runs the program of [Program.Open], whose file is descriptor fd, as an init (init.h), which runs the file
// that was looked up as its child. It is the last step. Signals should be blocked before. Errors are reported as those
// of Exec.
func (r *Request) ExecInit(fd int, args []string, env Word) *Step {
	return r.add(C.OP_INIT, r.Strings(append([]string{"init", ""}, args...)), env, fd)
}

// Sleep closes all descriptors and sleeps until the process is killed.
func (r *Request) Sleep() { r.add(C.OP_SLEEP) }

// OnError sets the text that precedes the errno of a failure.
func (s *Step) OnError(what string) *Step {
	return s.Explain(func(errno unix.Errno, _ uint32) error { return fmt.Errorf("%s: %w", what, errno) })
}

// Explain sets the function that makes the error of a failure. The meaning of detail depends on the operation.
func (s *Step) Explain(explain func(errno unix.Errno, detail uint32) error) *Step {
	s.explain = explain
	return s
}

// Tolerate lets the request continue after these errors. There are at most four.
func (s *Step) Tolerate(errnos ...unix.Errno) *Step {
	for i, e := range errnos {
		s.tolerated |= uint64(e) << (16 * i)
	}
	return s
}

// IgnoreErrors lets the request continue after any error.
func (s *Step) IgnoreErrors() *Step {
	s.tolerated = math.MaxUint64
	return s
}

// ExpectFD sets which descriptor the call must return.
func (s *Step) ExpectFD(fd int) *Step {
	s.fd = uint64(fd)
	return s
}

// IfFailed makes the step run only if the earlier one ran and met an error that it tolerates.
func (s *Step) IfFailed(earlier *Step) *Step {
	s.condition = int64(earlier.index) + 1
	return s
}

// IfDone makes the step run only if the earlier one ran without an error.
func (s *Step) IfDone(earlier *Step) *Step {
	s.condition = -int64(earlier.index) - 1
	return s
}

func (r *Request) add(op uint64, args ...any) *Step {
	if len(r.unused) == 0 {
		r.unused = make([]Step, 36) // 4 KiB
	}
	s := &r.unused[0]
	r.unused = r.unused[1:]
	s.index, s.op = int32(len(r.steps)), op
	for i, a := range args {
		w := r.word(a)
		s.args[i] = w.value
		if w.address {
			s.addresses |= 1 << i
		}
	}
	r.steps = append(r.steps, s)
	return s.Explain(func(errno unix.Errno, _ uint32) error { return errno })
}

func (r *Request) word(arg any) Word {
	switch a := arg.(type) {
	case Word:
		return a
	case int:
		return Word{value: uint64(a)}
	case uint32:
		return Word{value: uint64(a)}
	case uint64:
		return Word{value: a}
	case string:
		r.hasZero = r.hasZero || strings.IndexByte(a, 0) >= 0
		const short = 64
		if len(a) <= short {
			return r.bytes([]byte(a))
		}
		w, there := r.strings[a]
		if !there {
			if r.strings == nil {
				r.strings = map[string]Word{}
			}
			w = r.bytes([]byte(a))
			r.strings[a] = w
		}
		return w
	case []byte:
		return r.bytes(a)
	}
	panic(fmt.Sprintf("native: argument of type %T", arg))
}

// bytes adds data, which begins at a multiple of a word and ends with at least one zero byte.
func (r *Request) bytes(b []byte) Word {
	at := len(r.data)
	r.data = append(r.data, b...)
	r.data = append(r.data, make([]byte, wordSize-len(r.data)%wordSize)...)
	return Word{value: uint64(at), address: true}
}

// Table adds a table of words, in the form of the kernel's structures.
func (r *Request) Table(args ...any) Word {
	words := make([]Word, 0, len(args))
	for _, a := range args {
		words = append(words, r.word(a))
	}
	return r.table(words)
}

func (r *Request) table(words []Word) Word {
	at := len(r.data)
	for i, w := range words {
		r.data = binary.LittleEndian.AppendUint64(r.data, w.value)
		if w.address {
			r.addresses = append(r.addresses, at+i*wordSize)
		}
	}
	return Word{value: uint64(at), address: true}
}

// Strings adds a list of strings as execve(2) takes it, with the addresses of more strings at its end.
func (r *Request) Strings(list []string, more ...Word) Word {
	words := make([]Word, len(list), len(list)+len(more)+1)
	for i, s := range list {
		words[i] = r.word(s)
	}
	return r.table(append(append(words, more...), Word{}))
}

// Room adds size bytes that are zero.
func (r *Request) Room(size int) Word { return r.bytes(make([]byte, size)) }

// Encode returns the request as program.h describes it.
func (r *Request) Encode() []byte {
	const argsAt = 2 * wordSize // in struct step
	stepAt := func(i int) int { return C.sizeof_struct_header + i*C.sizeof_struct_step }
	relocations := len(r.addresses)
	for _, s := range r.steps {
		relocations += bits.OnesCount8(s.addresses)
	}
	data := stepAt(len(r.steps)) + relocations*wordSize // its offset
	size := data + len(r.data) + wordSize               // the last byte is always zero
	b := make([]byte, 0, size)
	put := func(n uint64) { b = binary.LittleEndian.AppendUint64(b, n) }
	put(uint64(size))
	put(uint64(len(r.steps)))
	put(uint64(relocations))
	for _, s := range r.steps {
		put(s.op)
		put(s.call)
		for _, a := range s.args {
			put(a)
		}
		put(s.tolerated)
		put(uint64(s.condition))
		put(s.fd)
		put(0)
	}
	for i, s := range r.steps {
		for j := range s.args {
			if s.addresses&(1<<j) != 0 {
				put(uint64(stepAt(i) + argsAt + j*wordSize))
			}
		}
	}
	for _, a := range r.addresses {
		put(uint64(data + a))
	}
	return append(b, r.data...)[:size]
}
