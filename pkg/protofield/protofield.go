// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package protofield decodes and encodes protobuf messages field by field. It is for the few messages whose generated
// Go packages link gRPC (docs/decisions/0013-messages-of-containerd.md): those of containerd's sandbox service, and
// CRI's PodSandboxConfig.
package protofield

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Decode reads the message b. fields[i] is for the field with number i+1; nil skips it. Each of the others is a pointer
// to a variable of the field's type: for a message a [proto.Message] or a struct as for [Unmarshal], for one that may
// be missing a pointer to that, for a repeated field a slice. Like the library, Decode skips fields that it does not
// know or that have another wire type.
func Decode(b []byte, fields ...any) error {
	for len(b) > 0 {
		number, wireType, length := protowire.ConsumeField(b)
		if length < 0 {
			return protowire.ParseError(length)
		}
		if !number.IsValid() {
			return fmt.Errorf("field %d: number is not valid", number)
		}
		_, _, tag := protowire.ConsumeTag(b)
		value := b[tag:length]
		b = b[length:]
		if int(number) > len(fields) {
			continue
		}
		switch wireType { //nolint:exhaustive // no field has another
		case protowire.VarintType:
			n, _ := protowire.ConsumeVarint(value)
			setNumber(fields[number-1], n)
		case protowire.BytesType:
			content, _ := protowire.ConsumeBytes(value)
			if err := setBytes(fields[number-1], content); err != nil {
				return fmt.Errorf("field %d: %w", number, err)
			}
		}
	}
	return nil
}

func setNumber(field any, n uint64) {
	switch v := reflect.Indirect(reflect.ValueOf(field)); {
	case v.Kind() == reflect.Bool:
		v.SetBool(protowire.DecodeBool(n))
	case v.CanInt():
		v.SetInt(int64(n))
	case v.CanUint():
		v.SetUint(n)
	}
}

func setBytes(field any, b []byte) error {
	if field == nil {
		return nil
	}
	if m, ok := field.(proto.Message); ok {
		return proto.UnmarshalOptions{Merge: true}.Unmarshal(b, m)
	}
	switch v := reflect.ValueOf(field).Elem(); v.Kind() { //nolint:exhaustive // the others have another wire type
	case reflect.String:
		v.SetString(string(b))
		return checkUTF8(v.String())
	case reflect.Map: // of strings
		var key, value string
		if err := Decode(b, &key, &value); err != nil {
			return err
		}
		if v.IsNil() {
			v.Set(reflect.ValueOf(map[string]string{}))
		}
		v.SetMapIndex(reflect.ValueOf(key), reflect.ValueOf(value))
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return setBytes(v.Interface(), b)
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		return setBytes(v.Index(v.Len()-1).Addr().Interface(), b)
	case reflect.Struct:
		fields := make([]any, v.NumField())
		for i := range fields {
			if f := v.Field(i); f.CanInterface() {
				fields[i] = f.Addr().Interface()
			}
		}
		return Decode(b, fields...)
	}
	return nil
}

// Unmarshal decodes b into *m, a struct whose fields are in the order of their numbers. It skips those with the name _.
func Unmarshal(b []byte, m any) error { return setBytes(m, b) }

func checkUTF8(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("string is not valid UTF-8")
	}
	return nil
}

// Encode returns a message whose field with number i+1 has the value fields[i]: a string, bool, uint32, uint64, []byte,
// map[string]string, [proto.Message], or []any for the fields of a message, [][]any for several. It leaves out zero
// values and nil, but not messages without a field.
func Encode(fields ...any) ([]byte, error) {
	var b []byte
	for i, field := range fields {
		var err error
		if b, err = appendField(b, protowire.Number(i+1), field); err != nil {
			return nil, fmt.Errorf("field %d: %w", i+1, err)
		}
	}
	return b, nil
}

func appendField(b []byte, number protowire.Number, field any) (_ []byte, err error) {
	value := reflect.ValueOf(field)
	if field == nil || value.IsZero() {
		return b, nil
	}
	addBytes := func(content []byte, err error) ([]byte, error) {
		return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), content), err
	}
	switch field := field.(type) {
	case bool:
		return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), 1), nil
	case uint32, uint64:
		return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), value.Uint()), nil
	case string:
		return addBytes([]byte(field), checkUTF8(field))
	case []byte:
		return addBytes(field, nil)
	case []any:
		return addBytes(Encode(field...))
	case proto.Message:
		return addBytes(proto.Marshal(field))
	case [][]any:
		for _, message := range field {
			if b, err = appendField(b, number, message); err != nil {
				return nil, err
			}
		}
		return b, nil
	case map[string]string:
		for _, key := range slices.Sorted(maps.Keys(field)) {
			if b, err = appendField(b, number, []any{key, field[key]}); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	return nil, fmt.Errorf("cannot encode a %T", field)
}
