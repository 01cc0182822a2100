// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/options"
)

// callerOf plays a parent whose build information has the given package and module path.
func callerOf(pkg, module string) func() (*debug.BuildInfo, error) {
	return func() (*debug.BuildInfo, error) {
		return &debug.BuildInfo{Path: pkg, Main: debug.Module{Path: module}}, nil
	}
}

func TestLegacyVersion(t *testing.T) {
	unreadable := func() (*debug.BuildInfo, error) { return nil, os.ErrPermission }
	tests := []struct {
		name   string
		max    string // MAX_SHIM_VERSION; "" for unset
		caller func() (*debug.BuildInfo, error)
		want   protocolVersion
	}{
		{"1.6 sets no MAX_SHIM_VERSION", "", callerOf("github.com/containerd/containerd/cmd/containerd", "github.com/containerd/containerd"), plainAddress},
		{"1.7 from its module", "2", callerOf("github.com/containerd/containerd/cmd/containerd", "github.com/containerd/containerd"), jsonVersion2},
		{"2.x from its module", "2", callerOf("github.com/containerd/containerd/v2/cmd/containerd", "github.com/containerd/containerd/v2"), jsonVersion3},
		{"2.x built without module information", "2", callerOf("github.com/containerd/containerd/v2/cmd/containerd", ""), jsonVersion3},
		{"a product that embeds containerd", "2", callerOf("github.com/k3s-io/k3s/cmd/server", "github.com/k3s-io/k3s"), jsonVersion2},
		{"a module whose name only begins like it", "2", callerOf("github.com/containerd/containerd/v20/x", "github.com/containerd/containerd/v20"), jsonVersion2},
		{"a parent we may not look at", "2", unreadable, jsonVersion2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.max != "" {
				t.Setenv("MAX_SHIM_VERSION", tt.max)
			}
			if got := legacyVersion(tt.caller); got != tt.want {
				t.Errorf("legacyVersion = %d, want %d", got, tt.want)
			}
		})
	}
}

// The stdin-*.bin files were written by the named release's own encoder: gogo/protobuf in 1.6.
func TestParseRequest_OfEveryGeneration(t *testing.T) {
	t.Setenv("TTRPC_ADDRESS", "/env.ttrpc")
	a := Args{Namespace: "ns1", ID: "c1", Address: "/flag.sock"}
	old := request{Daemon: Daemon{Args: a, TTRPCAddress: "/env.ttrpc"}}
	with := func(d protocolVersion) request { r := old; r.version = d; return r }
	tests := []struct {
		name   string
		file   string // "" for empty stdin
		legacy protocolVersion
		want   request
		cgroup string
	}{
		{"1.6.38, runc options", "stdin-1.6.38.bin", plainAddress, with(plainAddress), "/shims"},
		{"1.6.38, no options", "", plainAddress, with(plainAddress), ""},
		{"1.7.35, runc options", "stdin-1.7.35.bin", jsonVersion2, with(jsonVersion2), "/shims"},
		{"1.7.35, no options", "", jsonVersion2, with(jsonVersion2), ""},
		{"2.0.5, TOML options", "stdin-2.0.5.bin", jsonVersion3, with(jsonVersion3), "/shims"},
		{"2.0.5, no options", "", jsonVersion3, with(jsonVersion3), ""},
		{
			"2.4.2, bootstrap parameters", "stdin-2.4.2.bin", plainAddress,
			request{
				Daemon: Daemon{
					Args:         Args{Namespace: "ns1", ID: "c1", Address: "/run/containerd/containerd.sock", Debug: true},
					TTRPCAddress: "/run/containerd/containerd.sock.ttrpc",
				},
				version: protobufVersion3, socketDir: "/run/user/0/s",
			},
			"/shims",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var input []byte
			if tt.file != "" {
				var err error
				if input, err = os.ReadFile(filepath.Join("testdata", tt.file)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := parseRequest(input, a, func() protocolVersion { return tt.legacy })
			if err != nil {
				t.Fatalf("parseRequest(%x) = %v", input, err)
			}
			_, opts, err := parseOptions(got.extensions, options.NewDefaults(""), "")
			if err != nil || opts.ShimCgroup != tt.cgroup {
				t.Errorf("parseOptions = %+v, %v, want ShimCgroup %q", opts, err, tt.cgroup)
			}
			got.extensions = nil
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(request{})); diff != "" {
				t.Errorf("parseRequest(%x) (-want +got):\n%s", input, diff)
			}
		})
	}
}

func TestParseRequest_RefusesWhatIsNoMessage(t *testing.T) {
	_, err := parseRequest([]byte("\xff\xff\xff"), Args{ID: "c1"}, func() protocolVersion { return jsonVersion2 })
	testx.WantInvalid(t, err, "3 bytes")
}

func TestParseRequest_OptionsThatLookLikeParameters(t *testing.T) {
	// A container whose id is a type URL: only a value equal to the namespace could deceive.
	name := "containerd.runc.v1.Options"
	input, err := proto.Marshal(&anypb.Any{TypeUrl: name, Value: []byte{0x1a, 0x02, '/', 'x'}})
	testx.Must(t, err)
	got, err := parseRequest(input, Args{Namespace: "ns", ID: name}, func() protocolVersion { return jsonVersion2 })
	if err != nil || got.version != jsonVersion2 || len(got.extensions) != 1 {
		t.Errorf("parseRequest(%x) = %+v, %v, want one option of version %d", input, got, err, jsonVersion2)
	}
}

func TestEncodeAnswer(t *testing.T) {
	const address = "unix:///run/containerd/s/ab"
	tests := []struct {
		name string
		d    protocolVersion
		want string
	}{
		{"1.6 dials the whole text", plainAddress, address},
		{"1.7 refuses version 3", jsonVersion2, `{"version":2,"address":"unix:///run/containerd/s/ab","protocol":"ttrpc"}`},
		{"2.0 to 2.2", jsonVersion3, `{"version":3,"address":"unix:///run/containerd/s/ab","protocol":"ttrpc"}`},
		{"2.3 and later", protobufVersion3, "\x08\x03\x12\x1bunix:///run/containerd/s/ab\x1a\x05ttrpc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := encodeAnswer(tt.d, address)
			if err != nil || string(got) != tt.want {
				t.Errorf("encodeAnswer(%d) = %q, %v, want %q", tt.d, got, err, tt.want)
			}
		})
	}
}

func TestParseOptions(t *testing.T) {
	pack := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		testx.Must(t, err)
		return a
	}
	bare := pack(&runcoptions.Options{ShimCgroup: "/bare"})
	bare.TypeUrl = "containerd.runc.v1.Options" // typeurl writes no host part
	foreign := &anypb.Any{TypeUrl: "example.com/x", Value: []byte{0xff}}
	for _, tt := range []struct {
		name string
		in   []*anypb.Any
		want string
		is   error
	}{
		{"none", nil, "", nil},
		{"a type URL without host", []*anypb.Any{bare}, "/bare", nil},
		{"behind a foreign extension", []*anypb.Any{foreign, pack(&runtimeoptions.Options{ConfigBody: []byte("ShimCgroup = '/body'")}), bare}, "/body", nil},
		{"a foreign extension", []*anypb.Any{foreign}, "", nil},
		{"a broken message", []*anypb.Any{{TypeUrl: "containerd.runc.v1.Options", Value: []byte{0xff}}}, "", errdefs.ErrInvalidArgument},
	} {
		_, got, err := parseOptions(tt.in, options.NewDefaults(""), "")
		if !errors.Is(err, tt.is) || got.ShimCgroup != tt.want {
			t.Errorf("%s: parseOptions = %+v, %v, want ShimCgroup %q, error %v", tt.name, got, err, tt.want, tt.is)
		}
	}
}

func TestReadInput_IsBounded(t *testing.T) {
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "stdin"), os.O_RDWR|os.O_CREATE, 0o600)
	testx.Must(t, err)
	defer func() { _ = file.Close() }() // a sparse file in the test's directory
	for _, tt := range []struct {
		size int64
		ok   bool
	}{{0, true}, {maxInput, true}, {maxInput + 1, false}} {
		testx.Must(t, file.Truncate(tt.size))
		if _, err := file.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		got, err := ReadInput(file)
		if (err == nil) != tt.ok || (tt.ok && int64(len(got)) != tt.size) {
			t.Errorf("ReadInput of %d bytes = %d bytes, %v, want success %t", tt.size, len(got), err, tt.ok)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	files, err := filepath.Glob("testdata/stdin-*.bin")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		testx.Must(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		r, err := parseRequest(input, Args{Namespace: "ns1", ID: "c1"}, func() protocolVersion { return jsonVersion2 })
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("parseRequest(%x) error = %v, want ErrInvalidArgument", input, err)
			}
			return
		}
		if _, _, err := parseOptions(r.extensions, options.NewDefaults(""), ""); err != nil && !errdefs.IsInvalidArgument(err) && !errdefs.IsNotFound(err) {
			t.Logf("parseOptions of %x: %v", input, err) // a path that cannot be read has the system's error
		}
	})
}
