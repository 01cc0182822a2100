// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

/*
#include "program.h"
*/
import "C"

import (
	"encoding/binary"
	"math"

	"golang.org/x/sys/unix"
)

// word is an argument of a step: a number, or the place of data that is sent along.
type word struct {
	value uint64
	place bool
}

func number[T ~int | ~int32 | ~uint32 | ~uint64](n T) word { return word{value: uint64(n)} }

// step is one step of the program, with the words for its failure.
type step struct {
	op       uint64
	call     uint64
	args     [6]word
	tolerate uint64
	after    uint64
	result   uint64
	explain  func(errno unix.Errno, detail uint32) error
	grant    func(pid int) error // what only the shim may do, before a process may go on that waits; nil for nothing
}

// request collects steps and their data.
type request struct {
	steps  []step
	data   []byte
	places []int // offsets in data of words that hold an offset in data
}

const wordSize = 8

// bytes adds data, which begins at a multiple of a word and ends with at least one zero byte.
func (r *request) bytes(b []byte) word {
	at := len(r.data)
	r.data = append(r.data, b...)
	r.data = append(r.data, make([]byte, wordSize-len(r.data)%wordSize)...)
	return word{value: uint64(at), place: true}
}

func (r *request) text(s string) word { return r.bytes([]byte(s)) }

// words adds a table of words, as the kernel's structures and lists of strings are.
func (r *request) words(table ...word) word {
	at := len(r.data)
	for i, w := range table {
		r.data = binary.LittleEndian.AppendUint64(r.data, w.value)
		if w.place {
			r.places = append(r.places, at+i*wordSize)
		}
	}
	return word{value: uint64(at), place: true}
}

// list adds strings as execve(2) takes them, with room for some more at the end.
func (r *request) list(strings []string, more int) word {
	table := make([]word, 0, len(strings)+more+1)
	for _, s := range strings {
		table = append(table, r.text(s))
	}
	return r.words(append(table, make([]word, more+1)...)...)
}

// encode is the request as program.h describes it.
func (r *request) encode() []byte {
	var places []uint64 // of all words that hold an offset in data
	const fields = C.sizeof_struct_step / wordSize
	for i, s := range r.steps {
		for j, a := range s.args {
			if a.place {
				places = append(places, uint64(C.sizeof_struct_header+(i*fields+2+j)*wordSize))
			}
		}
	}
	steps := C.sizeof_struct_header + len(r.steps)*C.sizeof_struct_step
	base := uint64(steps + (len(places)+len(r.places))*wordSize)
	end := base + uint64(len(r.data)) + wordSize // the last byte is always zero

	b := make([]byte, 0, end)
	put := func(values ...uint64) {
		for _, v := range values {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	put(end, uint64(len(r.steps)), uint64(len(places)+len(r.places)))
	for _, s := range r.steps {
		put(s.op, s.call)
		for _, a := range s.args {
			if a.place {
				a.value += base
			}
			put(a.value)
		}
		put(s.tolerate, s.after, s.result)
	}
	put(places...)
	for _, p := range r.places {
		put(base + uint64(p))
	}
	data := append(b, r.data...)
	for _, p := range r.places {
		at := data[base+uint64(p):]
		binary.LittleEndian.PutUint64(at, binary.LittleEndian.Uint64(at)+base)
	}
	return append(data, make([]byte, wordSize)...)
}

// do adds a step of one of the program's operations.
func (r *request) do(op uint64, args ...word) *step {
	s := step{op: op, explain: plain}
	copy(s.args[:], args)
	r.steps = append(r.steps, s)
	return &r.steps[len(r.steps)-1]
}

// call adds a system call.
func (r *request) call(number uint64, args ...word) *step {
	s := r.do(C.OP_CALL, args...)
	s.call = number
	return s
}

// last is what the field after of a later step calls the step that was added last.
func (r *request) last() uint64 { return uint64(len(r.steps)) }

// waits are the indexes of the steps at which a process waits for leave.
func (r *request) waits() (waits []int) {
	for i, s := range r.steps {
		if s.op == C.OP_READY {
			waits = append(waits, i)
		}
	}
	return waits
}

// fork reports whether a process ends with the step and another goes on.
func (s *step) fork() bool { return s.op == C.OP_FORK }

// unless lets the step fail with these errors.
func (s *step) unless(errnos ...unix.Errno) *step {
	for i, e := range errnos {
		s.tolerate |= uint64(e) << (16 * i)
	}
	return s
}

// anyway lets the step fail.
func (s *step) anyway() *step {
	s.tolerate = math.MaxUint64
	return s
}

// gives says which descriptor the call returns.
func (s *step) gives(fd int) *step {
	s.result = uint64(fd)
	return s
}

// or says what a failure is called.
func (s *step) or(explain func(errno unix.Errno, detail uint32) error) *step {
	s.explain = explain
	return s
}
