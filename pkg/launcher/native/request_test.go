// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// The layout of program.h.
const (
	headerWords = 3
	stepWords   = 12
)

// FuzzEncode makes a request of bytes, and reads what it was made of out of its encoding, as the program does.
func FuzzEncode(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06"))
	f.Add([]byte("\x03\x03\x03\x13\x83abcdefgh\x04\x04\x04"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, from []byte) {
		r := &Request{}
		var want [][]any // of each step
		for len(from) > 0 && len(want) < 100 {
			args := make([]any, 0, 6)
			for range min(int(from[0]>>5), 6) {
				args, from = append(args, argument(from)), from[1:]
				if len(from) == 0 {
					break
				}
			}
			r.Call(len(want), args...)
			want = append(want, args)
			from = from[min(1, len(from)):]
		}
		e := encoded{t, r.Encode()}
		if got := e.word(0); got != len(e.bytes) {
			t.Fatalf("size = %d, want %d", got, len(e.bytes))
		}
		if got := e.word(1); got != len(want) {
			t.Fatalf("steps = %d, want %d", got, len(want))
		}
		e.relocate(headerWords+stepWords*len(want), e.word(2))
		for i, args := range want {
			step := headerWords + stepWords*i
			if got := e.word(step + 1); got != i {
				t.Errorf("step %d: call %d, want %d", i, got, i)
			}
			for j, a := range args {
				e.check(step+2+j, a)
			}
		}
	})
}

// argument is one of each kind that a step may have, made of the first bytes.
func argument(from []byte) any {
	text := from[:min(int(from[0]%16), len(from))]
	switch from[0] % 4 {
	case 0:
		return int(from[0])
	case 1:
		return bytes.Clone(text)
	case 2:
		return string(bytes.ReplaceAll(text, []byte{0}, []byte{'0'}))
	}
	return uint64(from[0]) << 40
}

// encoded is a request in the memory of the program, which adds its own address where the request says.
type encoded struct {
	*testing.T
	bytes []byte
}

func (e encoded) word(i int) int {
	e.Helper()
	if i < 0 || (i+1)*wordSize > len(e.bytes) {
		e.Fatalf("word %d is not in the request of %d bytes", i, len(e.bytes))
	}
	return int(binary.LittleEndian.Uint64(e.bytes[i*wordSize:]))
}

// relocate makes the offsets in the data those in the request.
func (e encoded) relocate(at, count int) {
	e.Helper()
	data := (at + count) * wordSize
	for i := range count {
		place := e.word(at + i)
		if place%wordSize != 0 {
			e.Fatalf("relocation %d at %d, want a multiple of a word", i, place)
		}
		binary.LittleEndian.PutUint64(e.bytes[place:], uint64(data+e.word(place/wordSize)))
	}
}

// check looks that a word is the argument, or leads to it.
func (e encoded) check(i int, want any) {
	e.Helper()
	value := e.word(i)
	text, isText := want.(string)
	if b, ok := want.([]byte); ok {
		text, isText = string(b), true
	}
	switch {
	case isText && (value < 0 || value+len(text) >= len(e.bytes)):
		e.Errorf("argument %q is at %d, want it in the request of %d bytes", text, value, len(e.bytes))
	case isText && string(e.bytes[value:value+len(text)+1]) != text+"\x00":
		e.Errorf("argument = %q, want %q with a zero byte", e.bytes[value:value+len(text)+1], text)
	case !isText && value != number(want):
		e.Errorf("argument = %d, want %v", value, want)
	}
}

func number(a any) int {
	if n, ok := a.(int); ok {
		return n
	}
	return int(a.(uint64))
}
