// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/containerd/cgroups/v3/cgroup1/stats"
	_ "github.com/containerd/cgroups/v3/cgroup2/stats"
	_ "github.com/containerd/containerd/api/events"
	_ "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	_ "github.com/containerd/containerd/api/runtime/task/v2"
	_ "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	_ "github.com/containerd/containerd/api/types/runc/options"
	_ "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"sandbox.internal/shim/pkg/wire"
	"sandbox.internal/shim/pkg/wire/wiretest"
)

// linked are all types of messages in packages of containerd, in a fixed order.
var linked = func() []protoreflect.MessageType {
	var all []protoreflect.MessageType
	protoregistry.GlobalTypes.RangeMessages(func(t protoreflect.MessageType) bool {
		name := string(t.Descriptor().FullName())
		if strings.HasPrefix(name, "google.") && name != "google.protobuf.Any" && name != "google.protobuf.Timestamp" {
			return true
		}
		all = append(all, t)
		return true
	})
	slices.SortFunc(all, func(a, b protoreflect.MessageType) int {
		return strings.Compare(string(a.Descriptor().FullName()), string(b.Descriptor().FullName()))
	})
	return all
}()

// known are those of linked that this package can encode.
var known = slices.DeleteFunc(slices.Clone(linked), func(typ protoreflect.MessageType) bool {
	return !wire.Known(typ.New().Interface())
})

func TestWhatIsNotKnown(t *testing.T) {
	want := []string{
		"containerd.task.v2.ExecProcessResponse", // no tag, as in what is no message; none of containerd's services has it
	}
	var got []string
	for _, typ := range linked {
		if !slices.Contains(known, typ) {
			got = append(got, string(typ.Descriptor().FullName()))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not known (-want +got):\n%s", diff)
	}
}

// The messages are encoded as the library reads them, and what the library encodes is decoded.
func TestMessagesAreThoseOfTheLibrary(t *testing.T) {
	for _, typ := range known {
		t.Run(string(typ.Descriptor().FullName()), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			for range 50 {
				m := typ.New()
				wiretest.Fill(r, m)
				want := m.Interface()
				b, err := wire.Marshal(want)
				if err != nil {
					t.Fatal(err)
				}
				back := typ.New().Interface()
				if err := proto.Unmarshal(b, back); err != nil || !proto.Equal(back, want) {
					t.Fatalf("encoded %v, the library reads %v, %v", want, back, err)
				}
				if b, err = proto.Marshal(want); err != nil {
					t.Fatal(err)
				}
				if err := wire.Unmarshal(b, back); err != nil || !proto.Equal(back, want) {
					t.Fatalf("the library encoded %v, decoded %v, %v", want, back, err)
				}
			}
		})
	}
}

// FuzzUnmarshal holds that any bytes are taken or refused as the library does.
func FuzzUnmarshal(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for i, typ := range known {
		for range 3 {
			m := typ.New()
			wiretest.Fill(r, m)
			b, err := proto.Marshal(m.Interface())
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint16(i), b)
		}
	}
	f.Fuzz(func(t *testing.T, i uint16, b []byte) {
		typ := known[int(i)%len(known)]
		want, got := typ.New().Interface(), typ.New().Interface()
		wantErr := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, want)
		err := wire.Unmarshal(b, got)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%s: %v, the library: %v", typ.Descriptor().FullName(), err, wantErr)
		}
		if err != nil {
			return
		}
		if !proto.Equal(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
		b, err = wire.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		back := typ.New().Interface()
		if err := proto.Unmarshal(b, back); err != nil || !proto.Equal(back, want) {
			t.Fatalf("encoded %v, the library reads %v, %v", want, back, err)
		}
	})
}

// plain is what is not generated: a struct with tags alone.
type plain struct {
	Name    string   `protobuf:"bytes,1,opt,name=name,proto3"`
	Inner   inner    `protobuf:"bytes,2,opt,name=inner,proto3"`
	Pointer *inner   `protobuf:"bytes,3,opt,name=pointer,proto3"`
	List    []*inner `protobuf:"bytes,4,rep,name=list,proto3"`
	Maybe   *string  `protobuf:"bytes,5,opt,name=maybe,proto3,oneof"`
}

type inner struct {
	Number int64             `protobuf:"varint,1,opt,name=number,proto3"`
	Pairs  map[string]string `protobuf:"bytes,2,rep,name=pairs,proto3"`
}

func TestPlainStructs(t *testing.T) {
	for name, want := range map[string]plain{
		"nothing":    {},
		"all":        {Name: "n", Inner: inner{Number: -1, Pairs: map[string]string{"k": "v", "": ""}}, Pointer: &inner{Number: 1}, List: []*inner{{Number: 2}, {}}},
		"empty ones": {Pointer: &inner{}, Maybe: new(string)},
	} {
		b, err := wire.Marshal(&want)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := plain{Name: "from before", Pointer: &inner{Number: 7}}
		if err := wire.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A library that has but a proto.Message goes the same way.
func TestMessage(t *testing.T) {
	want := plain{Name: "n", Inner: inner{Number: 5}}
	b, err := proto.Marshal(wire.Message(&want))
	if err != nil {
		t.Fatal(err)
	}
	got := plain{Name: "from before", Pointer: &inner{}}
	if err := proto.Unmarshal(b, wire.Message(&got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if b, err := proto.Marshal(wire.Message(&plain{})); err != nil || len(b) != 0 {
		t.Errorf("an empty message = %x, %v", b, err)
	}
}

func TestErrorsSayWhere(t *testing.T) {
	for name, test := range map[string]struct {
		do   func() error
		want string
	}{
		"text to encode": {func() error { _, err := wire.Marshal(&plain{Name: "\xff"}); return err }, "wire_test.plain.Name: not valid UTF-8"},
		"key to encode": {func() error {
			_, err := wire.Marshal(&plain{Pointer: &inner{Pairs: map[string]string{"\xff": ""}}})
			return err
		}, "wire_test.plain.Pointer: wire_test.inner.Pairs: not valid UTF-8"},
		"text to decode":   {func() error { return wire.Unmarshal([]byte{1<<3 | 2, 1, 0xff}, &plain{}) }, "wire_test.plain.Name: not valid UTF-8"},
		"a short text":     {func() error { return wire.Unmarshal([]byte{1<<3 | 2, 3, 'a'}, &plain{}) }, "wire_test.plain.Name: unexpected EOF"},
		"a short unknown":  {func() error { return wire.Unmarshal([]byte{9 << 3}, &plain{}) }, "wire_test.plain: field 9: unexpected EOF"},
		"no struct":        {func() error { _, err := wire.Marshal(plain{}); return err }, "wire_test.plain: has no form on the wire"},
		"not to decode to": {func() error { return wire.Unmarshal(nil, plain{}) }, "wire_test.plain: has no form on the wire"},
		"a time": {func() error {
			_, err := wire.Marshal(&struct {
				At time.Time `protobuf:"bytes,1,opt,name=at,proto3"`
			}{})
			return err
		}, "*struct { At time.Time \"protobuf:\\\"bytes,1,opt,name=at,proto3\\\"\" }: has no form on the wire"},
		"a field without a tag": {func() error {
			_, err := wire.Marshal(&struct{ Name string }{})
			return err
		}, "*struct { Name string }: has no form on the wire"},
	} {
		if err := test.do(); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}
