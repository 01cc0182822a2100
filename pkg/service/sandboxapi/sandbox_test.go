// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxapi_test

import (
	"fmt"
	"testing"

	containerd "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"sandbox.internal/shim/pkg/service/sandboxapi"
)

// Every message of containerd's package, with every field set, is read by ours and comes back the same.
func TestMessagesAreThoseOfContainerd(t *testing.T) {
	theirs := containerd.File_runtime_sandbox_v1_sandbox_proto.Messages()
	ours := sandboxapi.File_pkg_service_sandboxapi_sandbox_proto.Messages()
	if ours.Len() != theirs.Len() {
		t.Errorf("%d messages, want the %d of containerd", ours.Len(), theirs.Len())
	}
	for i := range theirs.Len() {
		want := theirs.Get(i)
		t.Run(string(want.Name()), func(t *testing.T) {
			own := ours.ByName(want.Name())
			if own == nil {
				t.Fatal("there is no such message")
			}
			sent := dynamicpb.NewMessage(want)
			fill(t, sent, "")
			wire := encode(t, sent)
			read := dynamicpb.NewMessage(own)
			must(t, proto.Unmarshal(wire, read))
			if unknown := read.GetUnknown(); len(unknown) > 0 {
				t.Errorf("fields are not known: %x", unknown)
			}
			for j := range want.Fields().Len() {
				theirs := want.Fields().Get(j)
				field := own.Fields().ByName(theirs.Name())
				if field == nil || field.Number() != theirs.Number() || field.Kind() != theirs.Kind() || field.Cardinality() != theirs.Cardinality() {
					t.Errorf("field %s = %v, want %v", theirs.Name(), field, theirs)
				} else if !read.Has(field) {
					t.Errorf("field %s was lost", field.Name())
				}
			}
			back := dynamicpb.NewMessage(want)
			must(t, proto.Unmarshal(encode(t, read), back))
			if !proto.Equal(back, sent) {
				t.Errorf("came back as %v\nwant %v", back, sent)
			}
		})
	}
}

// fill sets every field of m, and of the messages in it, to a value of its own.
func fill(t *testing.T, m protoreflect.Message, path string) {
	t.Helper()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		at := fmt.Sprintf("%s/%s", path, f.Name())
		switch {
		case f.IsMap():
			entry := m.Mutable(f).Map()
			v := entry.NewValue()
			if f.MapValue().Kind() == protoreflect.MessageKind {
				fill(t, v.Message(), at)
			} else {
				v = value(t, f.MapValue(), at)
			}
			entry.Set(value(t, f.MapKey(), at+"/key").MapKey(), v)
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			fill(t, m.Mutable(f).List().AppendMutable().Message(), at)
		case f.IsList():
			m.Mutable(f).List().Append(value(t, f, at))
		case f.Kind() == protoreflect.MessageKind:
			fill(t, m.Mutable(f).Message(), at)
		default:
			m.Set(f, value(t, f, at))
		}
	}
}

func value(t *testing.T, f protoreflect.FieldDescriptor, path string) protoreflect.Value {
	t.Helper()
	values := map[protoreflect.Kind]protoreflect.Value{
		protoreflect.StringKind: protoreflect.ValueOfString(path),
		protoreflect.BytesKind:  protoreflect.ValueOfBytes([]byte(path)),
		protoreflect.BoolKind:   protoreflect.ValueOfBool(true),
		protoreflect.Uint32Kind: protoreflect.ValueOfUint32(uint32(len(path))),
		protoreflect.Int32Kind:  protoreflect.ValueOfInt32(int32(len(path))),
		protoreflect.Int64Kind:  protoreflect.ValueOfInt64(int64(len(path))),
	}
	v, ok := values[f.Kind()]
	if !ok {
		t.Fatalf("%s: no value for kind %v", path, f.Kind())
	}
	return v
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	must(t, err)
	return data
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
