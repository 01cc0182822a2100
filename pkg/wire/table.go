// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// kind is how one value of a field is encoded.
type kind uint8

const (
	boolean  kind = iota + 1
	signed        // int32, int64 and enumerations
	unsigned      // uint32, uint64
	double
	text
	data
	message // a pointer to a struct
	inner   // a message that is a struct in the other
	pairs   // map<string, string>, or to a message
)

// field is a field with a tag as protoc-gen-go writes it.
type field struct {
	number protowire.Number
	index  int // in the struct
	kind   kind
	bits   int // of a number
	// A field is one value, or a list (repeated), or a pointer to a value (optional).
	list, pointer bool
	packed        bool   // a list of numbers, encoded as one value
	below         *table // of a message
	value         *field // of a map
}

// wireType is that of one value.
func (f *field) wireType() protowire.Type {
	switch f.kind {
	case boolean, signed, unsigned:
		return protowire.VarintType
	case double:
		return protowire.Fixed64Type
	case text, data, message, inner, pairs:
	}
	return protowire.BytesType
}

// table is all that is to be known of a type of message: its fields in the order of their numbers.
type table struct{ fields []field }

func (t *table) field(n protowire.Number) *field {
	i, ok := slices.BinarySearchFunc(t.fields, n, func(f field, n protowire.Number) int { return cmp.Compare(f.number, n) })
	if !ok {
		return nil
	}
	return &t.fields[i]
}

var tables = struct {
	sync.Mutex
	known map[reflect.Type]*table // nil for a type that is no message, or is being looked at
}{known: map[reflect.Type]*table{}}

// tableOf is the table of the struct t, or nil where it has fields that are not known here.
func tableOf(t reflect.Type) *table {
	tables.Lock()
	defer tables.Unlock()
	return makeTable(t)
}

// makeTable is called with tables locked.
func makeTable(t reflect.Type) *table {
	known, ok := tables.known[t]
	if ok {
		return known
	}
	tables.known[t] = nil // what contains itself finds this
	var made table
	for i := range t.NumField() {
		s := t.Field(i)
		tag, ok := s.Tag.Lookup("protobuf")
		if !ok {
			if s.IsExported() {
				return nil // a oneof
			}
			continue
		}
		f, ok := parse(s.Type, tag)
		if !ok {
			return nil
		}
		f.index = i
		made.fields = append(made.fields, f)
	}
	slices.SortFunc(made.fields, func(a, b field) int { return cmp.Compare(a.number, b.number) })
	if len(made.fields) == 0 && t.NumField() > 0 {
		return nil // no message, as time.Time
	}
	tables.known[t] = &made
	return &made
}

// parse reads a tag as `bytes,3,rep,name=rootfs,proto3`: the wire type, the number, and how often.
func parse(t reflect.Type, tag string) (field, bool) {
	wire, tag, _ := strings.Cut(tag, ",")
	number, tag, _ := strings.Cut(tag, ",")
	often, tag, _ := strings.Cut(tag, ",")
	n, err := strconv.Atoi(number)
	if err != nil || !strings.Contains(tag+",", "proto3,") {
		return field{}, false
	}
	f := field{number: protowire.Number(n), list: often == "rep" && t.Kind() == reflect.Slice, packed: strings.HasPrefix(tag, "packed")}
	if strings.HasSuffix(tag, ",oneof") { // so protoc-gen-go writes an optional field
		if f.pointer = t.Kind() == reflect.Pointer; !f.pointer {
			return field{}, false
		}
	}
	if f.list || f.pointer {
		t = t.Elem()
	}
	f.kind = kindOf(t, wire)
	switch f.kind {
	case 0:
		return field{}, false
	case signed, unsigned:
		f.bits = t.Bits()
	case message:
		f.below = makeTable(t.Elem())
		return f, f.below != nil
	case inner:
		f.below = makeTable(t)
		return f, f.below != nil && !f.list
	case pairs:
		f.value = &field{number: 2, kind: kindOf(t.Elem(), "bytes")}
		if f.value.kind == message {
			f.value.below = makeTable(t.Elem().Elem())
			return f, f.value.below != nil
		}
		return f, f.value.kind == text
	case boolean, double, text, data:
	}
	return f, true
}

// kindOf is 0 for a type that is not known, or has another wire type than ours.
func kindOf(t reflect.Type, wire string) kind {
	is := func(t reflect.Type, kinds ...reflect.Kind) bool { return slices.Contains(kinds, t.Kind()) }
	switch {
	case wire == "fixed64" && is(t, reflect.Float64):
		return double
	case wire == "varint" && is(t, reflect.Bool):
		return boolean
	case wire == "varint" && is(t, reflect.Int32, reflect.Int64):
		return signed
	case wire == "varint" && is(t, reflect.Uint32, reflect.Uint64):
		return unsigned
	case wire != "bytes":
		return 0
	case is(t, reflect.String):
		return text
	case is(t, reflect.Slice) && is(t.Elem(), reflect.Uint8):
		return data
	case is(t, reflect.Map) && is(t.Key(), reflect.String):
		return pairs
	case is(t, reflect.Pointer) && is(t.Elem(), reflect.Struct):
		return message
	case is(t, reflect.Struct):
		return inner
	}
	return 0
}
