// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

var errText = errors.New("not valid UTF-8")

// Marshal encodes m, a pointer to a struct with tags.
func Marshal(m any) ([]byte, error) {
	v, t := lookUp(m)
	if t == nil {
		return nil, unknown(m)
	}
	return t.append(nil, v)
}

// lookUp is the struct that m points to, and its table; nil without one.
func lookUp(m any) (reflect.Value, *table) {
	v := reflect.ValueOf(m)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return v, nil
	}
	return v.Elem(), tableOf(v.Type().Elem())
}

func unknown(m any) error { return fmt.Errorf("%T: has no form on the wire", m) }

// append adds the fields of message v that are not zero.
func (t *table) append(b []byte, v reflect.Value) ([]byte, error) {
	for i := range t.fields {
		f := &t.fields[i]
		var err error
		if b, err = f.append(b, v.Field(f.index)); err != nil {
			return nil, fmt.Errorf("%s.%s: %w", v.Type(), v.Type().Field(f.index).Name, err)
		}
	}
	return b, nil
}

func (f *field) append(b []byte, v reflect.Value) ([]byte, error) {
	var err error
	switch {
	case f.kind == pairs:
		return f.appendPairs(b, v)
	case f.pointer:
		if v.IsNil() {
			return b, nil
		}
		return f.appendValue(protowire.AppendTag(b, f.number, f.wireType()), v.Elem())
	case !f.list:
		if v.IsZero() && !(f.kind == double && math.Signbit(v.Float())) || f.kind == data && v.Len() == 0 {
			return b, nil
		}
		return f.appendValue(protowire.AppendTag(b, f.number, f.wireType()), v)
	case f.packed && v.Len() > 0:
		var packed []byte
		for i := range v.Len() {
			if packed, err = f.appendValue(packed, v.Index(i)); err != nil {
				return nil, err
			}
		}
		return protowire.AppendBytes(protowire.AppendTag(b, f.number, protowire.BytesType), packed), nil
	}
	for i := range v.Len() {
		if b, err = f.appendValue(protowire.AppendTag(b, f.number, f.wireType()), v.Index(i)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// appendValue adds one value without its tag.
func (f *field) appendValue(b []byte, v reflect.Value) ([]byte, error) {
	switch f.kind {
	case boolean:
		return protowire.AppendVarint(b, protowire.EncodeBool(v.Bool())), nil
	case signed:
		return protowire.AppendVarint(b, uint64(v.Int())), nil
	case unsigned:
		return protowire.AppendVarint(b, v.Uint()), nil
	case double:
		return protowire.AppendFixed64(b, math.Float64bits(v.Float())), nil
	case text:
		return appendText(b, v.String())
	case data:
		return protowire.AppendBytes(b, v.Bytes()), nil
	case message:
		if v.IsNil() {
			return protowire.AppendBytes(b, nil), nil // in a list or a map
		}
		return f.appendMessage(b, v.Elem())
	case inner:
		return f.appendMessage(b, v)
	case pairs: // they are no value, and append has done them
	}
	return b, nil
}

func (f *field) appendMessage(b []byte, v reflect.Value) ([]byte, error) {
	below, err := f.below.append(nil, v)
	if err != nil {
		return nil, err
	}
	return protowire.AppendBytes(b, below), nil
}

// appendPairs adds a map: a message for each pair, with the key as field 1 and the value as field 2.
func (f *field) appendPairs(b []byte, v reflect.Value) ([]byte, error) {
	for i := v.MapRange(); i.Next(); {
		pair, err := appendText(protowire.AppendTag(nil, 1, protowire.BytesType), i.Key().String())
		if err != nil {
			return nil, err
		}
		pair, err = f.value.appendValue(protowire.AppendTag(pair, f.value.number, protowire.BytesType), i.Value())
		if err != nil {
			return nil, err
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, f.number, protowire.BytesType), pair)
	}
	return b, nil
}

func appendText(b []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, errText
	}
	return protowire.AppendString(b, s), nil
}
