// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package wiretest makes messages with all kinds of values, to compare encoders by.
package wiretest

import (
	"math"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Fill sets fields of m at random, all kinds of values among them.
func Fill(r *rand.Rand, m protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch {
		case r.IntN(4) == 0:
		case f.IsMap():
			for range r.IntN(3) {
				m.Mutable(f).Map().Set(scalar(r, f.MapKey()).MapKey(), value(r, f.MapValue(), m.Mutable(f).Map().NewValue))
			}
		case f.IsList():
			for range r.IntN(3) {
				list := m.Mutable(f).List()
				list.Append(value(r, f, list.NewElement))
			}
		default:
			m.Set(f, value(r, f, func() protoreflect.Value { return m.NewField(f) }))
		}
	}
}

func value(r *rand.Rand, f protoreflect.FieldDescriptor, fresh func() protoreflect.Value) protoreflect.Value {
	if f.Kind() != protoreflect.MessageKind {
		return scalar(r, f)
	}
	v := fresh()
	Fill(r, v.Message())
	return v
}

func scalar(r *rand.Rand, f protoreflect.FieldDescriptor) protoreflect.Value {
	n := []uint64{0, 1, 127, 128, math.MaxInt32, math.MaxUint32, math.MaxInt64, math.MaxUint64}[r.IntN(8)]
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64([]float64{0, math.Copysign(0, -1), 1.5, math.Inf(-1)}[r.IntN(4)])
	case protoreflect.StringKind:
		return protoreflect.ValueOfString([]string{"", "a", "žluťoučký kůň", strings.Repeat("x", 300)}[r.IntN(4)])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([][]byte{{}, {0}, []byte("\xff\xfe"), make([]byte, 300)}[r.IntN(4)])
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind, protoreflect.Sfixed32Kind, protoreflect.Fixed32Kind, protoreflect.FloatKind,
		protoreflect.Sfixed64Kind, protoreflect.Fixed64Kind, protoreflect.MessageKind, protoreflect.GroupKind:
	}
	panic("no value for kind " + f.Kind().String())
}
