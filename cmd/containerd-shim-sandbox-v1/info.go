// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/ociruntime"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/settings"
)

// featuresURL is the type of the OCI features document (core/runtime/typeurl.go), in JSON. Without it CRI reports no
// user namespaces, and kubelet refuses such pods.
const featuresURL = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

// info answers -info: a containerd.types.RuntimeInfo, with the options read from stdin given back.
func info(stdin *os.File, stdout io.Writer) error {
	input, err := bootstrap.ReadInput(stdin)
	if err != nil {
		return err
	}
	shim, commit, _ := buildOf()
	r := &types.RuntimeInfo{
		Name:        runtimeName,
		Version:     &types.RuntimeVersion{Version: shim, Revision: commit},
		Annotations: hostAnnotations(options.DefaultFile),
	}
	if len(input) > 0 {
		r.Options = new(anypb.Any)
		if err := proto.Unmarshal(input, r.Options); err != nil {
			return fmt.Errorf("decode options on stdin, %d bytes: %w: %w", len(input), err, errdefs.ErrInvalidArgument)
		}
	}
	body, err := json.Marshal(runtimeFeatures())
	if err != nil {
		return fmt.Errorf("encode features: %w", err)
	}
	r.Features = &anypb.Any{TypeUrl: featuresURL, Value: body}
	data, err := proto.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode runtime info: %w", err)
	}
	_, err = stdout.Write(data)
	return err
}

func runtimeFeatures() *features.Features {
	f := ociruntime.Features()
	for _, name := range extensions().Settings().Unsafe() {
		f.PotentiallyUnsafeConfigAnnotations = append(f.PotentiallyUnsafeConfigAnnotations, settings.Prefix+name)
	}
	return f
}

// hostAnnotations describes this machine to schedulers (docs/executors.md). What is wrong with the default
// configuration file is no error of -info: it does not concern containers with options of their own.
func hostAnnotations(defaults string) map[string]string {
	all := map[string]string{
		settings.Prefix + "cgroup.drivers": strings.Join(ociruntime.Drivers(), ","),
		settings.Prefix + "seccomp":        ociruntime.SeccompVersion(),
		settings.Prefix + "exec-launcher":  strconv.FormatBool(ociruntime.HasLauncher()),
		settings.Prefix + "criu":           ociruntime.CRIUPath(),
		settings.Prefix + "settings":       strings.Join(extensions().Settings().Names(), ","),
	}
	if _, err := newDefaults(defaults).All(); err != nil {
		all[settings.Prefix+"config.error"] = err.Error()
	}
	return all
}

func newDefaults(file string) *options.Defaults {
	return options.NewDefaults(file, extensions().Settings().Options()...)
}

// The linker sets these (-X main.version=...). Without them the build information answers.
var (
	version  string
	revision string
)

func buildOf() (shim, commit, libcontainer string) {
	shim, commit, libcontainer = version, revision, "unknown"
	if bi, ok := debug.ReadBuildInfo(); ok {
		shim = cmp.Or(shim, bi.Main.Version)
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" {
				commit = cmp.Or(commit, s.Value)
			}
		}
		for _, d := range bi.Deps {
			if d.Path == "github.com/opencontainers/runc" {
				libcontainer = d.Version
			}
		}
	}
	return shim, commit, libcontainer
}

// versionText returns the answer to -v, in the form of containerd's own shims (pkg/shim/shim.go).
func versionText(seccomp string) string {
	shim, commit, libcontainer := buildOf()
	return fmt.Sprintf(`%s:
  Version:  %s
  Revision: %s
  Go version: %s
  libcontainer: %s
  seccomp: %s

`, bootstrap.Program, shim, commit, runtime.Version(), libcontainer, cmp.Or(seccomp, "off"))
}
