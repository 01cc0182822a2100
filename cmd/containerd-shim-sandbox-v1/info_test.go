// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/settings"
)

func TestInfo(t *testing.T) {
	const file = "../../pkg/bootstrap/testdata/stdin-1.7.35.bin"
	stdin, err := os.Open(file)
	must(t, err)
	defer func() { _ = stdin.Close() }() // opened for reading only
	var stdout bytes.Buffer
	must(t, info(stdin, &stdout))
	var got types.RuntimeInfo
	must(t, proto.Unmarshal(stdout.Bytes(), &got))
	if got.GetName() != "io.containerd.sandbox.v1" {
		t.Errorf("name = %q", got.GetName())
	}
	sent, err := os.ReadFile(file)
	must(t, err)
	if back, err := proto.Marshal(got.GetOptions()); err != nil || !bytes.Equal(back, sent) {
		t.Errorf("options = %x, %v, want %x", back, err, sent)
	}
	if got := got.GetFeatures().GetTypeUrl(); got != "types.containerd.io/opencontainers/runtime-spec/1/features/Features" {
		t.Errorf("features have type URL %q", got)
	}
	var back features.Features
	must(t, json.Unmarshal(got.GetFeatures().GetValue(), &back))
	if diff := cmp.Diff(runtimeFeatures(), &back); diff != "" {
		t.Errorf("features (-want +got):\n%s", diff)
	}
}

func TestInfo_SaysWhatIsWrongWithTheDefaultConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	for content, want := range map[string]string{
		"": "", "IoUid = 7": "", "[namespace.a]\nNotify = 'x'": file + ": namespace.a: Notify x: must be true or false",
	} {
		must(t, os.WriteFile(file, []byte(content), 0o600))
		if got, wrong := hostAnnotations(file)[settings.Prefix+"config.error"]; wrong != (want != "") || !strings.HasPrefix(got, want) {
			t.Errorf("with %q: %q, want %q", content, got, want)
		}
	}
}

func TestVersionText(t *testing.T) {
	got := versionText("2.5.4")
	for _, want := range []string{"containerd-shim-sandbox-v1:\n  Version:  ", "\n  Revision: ", "\n  Go version: go1.", "\n  libcontainer: v1.", "\n  seccomp: 2.5.4\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("versionText = %q, want %q in it", got, want)
		}
	}
	if got := versionText(""); !strings.Contains(got, "seccomp: off\n") {
		t.Errorf("versionText without seccomp = %q, want seccomp off", got)
	}
}

func TestCheckRelease_RefusesWhatIsTooOld(t *testing.T) {
	for release, want := range map[string]bool{
		"4.19.0-27-amd64":        false,
		"5.4.0-216-generic":      false,
		"5.9.16":                 false,
		"5.10.0-46-amd64":        true,
		"5.15.0-1083-aws":        true,
		"6.1.0-56-amd64":         true,
		"7.2.13+deb14-amd64":     true,
		"10.0.0":                 true,
		"a kernel of somebody's": true,
	} {
		err := checkRelease(release)
		if got := err == nil; got != want {
			t.Errorf("checkRelease(%q) = %v, want supported: %v", release, err, want)
		}
		if err != nil && (!errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), release) ||
			!strings.Contains(err.Error(), "5.10")) {
			t.Errorf("checkRelease(%q) = %v, want the class, the release and the oldest one", release, err)
		}
	}
}
