// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoiface"
)

// Message is m, which is as for [Marshal], as a message that encodes and decodes itself by this package: for a library, as ttrpc, that
// calls [proto.Marshal] and [proto.Unmarshal]. It is good for nothing else: of reflection it has what those two ask for, and the rest panics. m must not be nil.
func Message(m any) proto.Message { return wrapped{m: m} }

type wrapped struct {
	protoreflect.Message // nil: what those who encode and decode do not ask for
	m                    any
}

func (w wrapped) ProtoReflect() protoreflect.Message   { return w }
func (w wrapped) Interface() protoreflect.ProtoMessage { return w }
func (w wrapped) IsValid() bool                        { return true }
func (w wrapped) Reset()                               {} // Unmarshal does it

// ProtoMethods is where [proto.Marshal] and [proto.Unmarshal] look before they reflect.
func (w wrapped) ProtoMethods() *protoiface.Methods { return &methods }

var methods = protoiface.Methods{
	Marshal: func(in protoiface.MarshalInput) (protoiface.MarshalOutput, error) {
		b, err := Marshal(in.Message.(wrapped).m)
		return protoiface.MarshalOutput{Buf: append(in.Buf, b...)}, err
	},
	Unmarshal: func(in protoiface.UnmarshalInput) (protoiface.UnmarshalOutput, error) {
		return protoiface.UnmarshalOutput{}, Unmarshal(in.Buf, in.Message.(wrapped).m)
	},
	CheckInitialized: func(protoiface.CheckInitializedInput) (protoiface.CheckInitializedOutput, error) {
		return protoiface.CheckInitializedOutput{}, nil // proto3 requires nothing
	},
}
