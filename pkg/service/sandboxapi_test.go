// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"reflect"
	"regexp"
	"slices"
	"testing"

	containerd "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"google.golang.org/protobuf/reflect/protoregistry"

	"sandbox.internal/shim/pkg/wire"
)

// sandboxMessages has each of them, by containerd's names.
var sandboxMessages = map[string]any{
	"CreateSandboxRequest":    createSandboxRequest{},
	"CreateSandboxResponse":   createSandboxResponse{},
	"StartSandboxRequest":     startSandboxRequest{},
	"StartSandboxResponse":    startSandboxResponse{},
	"PlatformRequest":         platformRequest{},
	"PlatformResponse":        platformResponse{},
	"StopSandboxRequest":      stopSandboxRequest{},
	"StopSandboxResponse":     stopSandboxResponse{},
	"UpdateSandboxRequest":    updateSandboxRequest{},
	"UpdateSandboxResponse":   updateSandboxResponse{},
	"WaitSandboxRequest":      waitSandboxRequest{},
	"WaitSandboxResponse":     waitSandboxResponse{},
	"SandboxStatusRequest":    sandboxStatusRequest{},
	"SandboxStatusResponse":   sandboxStatusResponse{},
	"PingRequest":             pingRequest{},
	"PingResponse":            pingResponse{},
	"ShutdownSandboxRequest":  shutdownSandboxRequest{},
	"ShutdownSandboxResponse": shutdownSandboxResponse{},
	"SandboxMetricsRequest":   sandboxMetricsRequest{},
	"SandboxMetricsResponse":  sandboxMetricsResponse{},
}

// skippedFields is what ours do not have of containerd's.
var skippedFields = map[string]string{"UpdateSandboxRequest": "bytes,4,opt,name=sandbox,proto3"}

// Every message of containerd's package is one of ours, with the same fields in the same order: number, type on the wire, name, and
// type in Go.
func TestSandboxMessagesAreThoseOfContainerd(t *testing.T) {
	theirs := containerd.File_runtime_sandbox_v1_sandbox_proto.Messages()
	if len(sandboxMessages) != theirs.Len() {
		t.Errorf("%d messages, want the %d of containerd", len(sandboxMessages), theirs.Len())
	}
	for i := range theirs.Len() {
		name := theirs.Get(i).Name()
		t.Run(string(name), func(t *testing.T) {
			own, ok := sandboxMessages[string(name)]
			if !ok {
				t.Fatal("there is no such message")
			}
			if _, err := wire.Marshal(reflect.New(reflect.TypeOf(own)).Interface()); err != nil {
				t.Error(err)
			}
			message, err := protoregistry.GlobalTypes.FindMessageByName(theirs.Get(i).FullName())
			if err != nil {
				t.Fatal(err)
			}
			got, want := taggedFields(reflect.TypeOf(own)), taggedFields(reflect.TypeOf(message.Zero().Interface()).Elem())
			want = slices.DeleteFunc(want, func(f [2]string) bool { return f[0] == skippedFields[string(name)] })
			if !slices.Equal(got, want) {
				t.Errorf("fields\n%q, want\n%q", got, want)
			}
		})
	}
}

// jsonName is what protoc-gen-go adds for names of two words.
var jsonName = regexp.MustCompile(",json=[^,]*")

// taggedFields are the tags and the types of the fields of a generated message.
func taggedFields(t reflect.Type) (all [][2]string) {
	for f := range t.Fields() {
		if tag := jsonName.ReplaceAllString(f.Tag.Get("protobuf"), ""); tag != "" {
			all = append(all, [2]string{tag, f.Type.String()})
		}
	}
	return all
}
