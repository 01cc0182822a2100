// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package protofield decodes and encodes protobuf messages field by field. It is for the few messages whose generated
// Go packages link gRPC (docs/decisions/0013-messages-of-containerd.md): those of containerd's sandbox service, and
// CRI's PodSandboxConfig.
package protofield

import (
	"fmt"
	"reflect"

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

// Encode returns a message whose field with number i+1 has the value fields[i]: a string, uint32, []byte,
// [proto.Message], or []any for the fields of a message, as for an entry of a map. It leaves out zero values and nil.
func Encode(fields ...any) (b []byte, err error) {
	for i, field := range fields {
		value := reflect.ValueOf(field)
		if field == nil || value.IsZero() {
			continue
		}
		number := protowire.Number(i + 1)
		if value.Kind() == reflect.Uint32 {
			b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), value.Uint())
			continue
		}
		var content []byte
		switch field := field.(type) {
		case []any:
			content, err = Encode(field...)
		case proto.Message:
			content, err = proto.Marshal(field)
		default:
			content = value.Convert(reflect.TypeFor[[]byte]()).Bytes()
		}
		if err != nil {
			return nil, fmt.Errorf("field %d: %w", number, err)
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), content)
	}
	return b, nil
}
