// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"reflect"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Unmarshal decodes b into m, which is as for [Marshal], and forgets what m held. After an error it holds what came before that.
func Unmarshal(b []byte, m any) error {
	v, t := lookUp(m)
	if t == nil {
		return unknown(m)
	}
	v.SetZero()
	return t.merge(v, b)
}

// merge sets the fields of message v that are in b.
func (t *table) merge(v reflect.Value, b []byte) error {
	for len(b) > 0 {
		number, w, n, err := consumeTag(b)
		if err != nil {
			return fmt.Errorf("%s: %w", v.Type(), err)
		}
		b = b[n:]
		f := t.field(number)
		if f == nil || !f.takes(w) {
			if n = protowire.ConsumeFieldValue(number, w, b); n < 0 {
				return fmt.Errorf("%s: field %d: %w", v.Type(), number, protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		if n, err = f.merge(v.Field(f.index), w, b); err != nil {
			return fmt.Errorf("%s.%s: %w", v.Type(), v.Type().Field(f.index).Name, err)
		}
		b = b[n:]
	}
	return nil
}

// consumeTag is [protowire.ConsumeTag], which lets numbers pass that no field can have.
func consumeTag(b []byte) (protowire.Number, protowire.Type, int, error) {
	number, w, n := protowire.ConsumeTag(b)
	switch {
	case n < 0:
		return 0, 0, 0, protowire.ParseError(n)
	case number > protowire.MaxValidNumber:
		return 0, 0, 0, fmt.Errorf("field %d: there is none above %d", number, protowire.MaxValidNumber)
	}
	return number, w, n, nil
}

// takes tells whether a value of wire type w is one of the field's. What is of another type counts as unknown.
func (f *field) takes(w protowire.Type) bool {
	return w == f.wireType() || f.list && f.isNumber() && w == protowire.BytesType
}

func (f *field) isNumber() bool { return f.wireType() != protowire.BytesType }

// merge sets v to the value at the beginning of b, or adds to it, and returns the value's length there.
func (f *field) merge(v reflect.Value, w protowire.Type, b []byte) (int, error) {
	if f.pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	if f.isNumber() && w != protowire.BytesType {
		return f.mergeNumber(v, b)
	}
	value, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return 0, protowire.ParseError(n)
	}
	switch {
	case f.isNumber():
		return n, f.mergePacked(v, value)
	case f.kind == pairs:
		return n, f.mergePair(v, value)
	case f.list:
		v.Grow(1)
		v.SetLen(v.Len() + 1)
		v = v.Index(v.Len() - 1)
		v.SetZero()
	}
	return n, f.setBytes(v, value)
}

// setBytes sets v to one text, or one piece of data, or merges a message into it.
func (f *field) setBytes(v reflect.Value, value []byte) error {
	switch f.kind {
	case text:
		if !utf8.Valid(value) {
			return errText
		}
		v.SetString(string(value))
	case data:
		v.SetBytes(append([]byte{}, value...)) // not nil, and not the caller's
	case message:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return f.below.merge(v.Elem(), value)
	case inner:
		return f.below.merge(v, value)
	case boolean, signed, unsigned, double, pairs: // merge has done them
	}
	return nil
}

func (f *field) mergePacked(v reflect.Value, b []byte) error {
	for len(b) > 0 {
		n, err := f.mergeNumber(v, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// mergeNumber sets v to the number at the beginning of b, or appends it, and returns its length there.
func (f *field) mergeNumber(v reflect.Value, b []byte) (n int, err error) {
	var bits uint64
	if f.kind == double {
		bits, n = protowire.ConsumeFixed64(b)
	} else {
		bits, n = protowire.ConsumeVarint(b)
	}
	if n < 0 {
		return 0, protowire.ParseError(n)
	}
	if f.list {
		v.Grow(1)
		v.SetLen(v.Len() + 1)
		v = v.Index(v.Len() - 1)
	}
	switch f.kind {
	case boolean:
		v.SetBool(protowire.DecodeBool(bits))
	case signed:
		v.SetInt(int64(bits) << (64 - f.bits) >> (64 - f.bits)) // what is too long is cut off
	case unsigned:
		v.SetUint(bits << (64 - f.bits) >> (64 - f.bits))
	case double:
		v.SetFloat(math.Float64frombits(bits))
	case text, data, message, inner, pairs: // no numbers
	}
	return n, nil
}

// mergePair adds to map v the key and the value that are the fields 1 and 2 of b; one that is not there is empty.
func (f *field) mergePair(v reflect.Value, b []byte) error {
	key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
	if f.value.kind == message {
		value.Set(reflect.New(value.Type().Elem()))
	}
	for len(b) > 0 {
		number, w, n, err := consumeTag(b)
		if err != nil {
			return err
		}
		b = b[n:]
		if number > 2 || w != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, w, b); n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		part, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if number == f.value.number {
			err = f.value.setBytes(value, part)
		} else {
			err = (&field{kind: text}).setBytes(key, part)
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	v.SetMapIndex(key, value)
	return nil
}
