// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/ociruntime"
	"sandbox.internal/shim/pkg/options"
)

// featuresURL is the name containerd registers for the OCI features document (core/runtime/typeurl.go); its body is
// JSON. Without it CRI reports no user namespaces and kubelet refuses such pods.
const featuresURL = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

// info answers -info: a containerd.types.RuntimeInfo, with the options read from stdin given back and the runtime's
// features f.
func info(stdin *os.File, stdout io.Writer, f *features.Features) error {
	input, err := bootstrap.ReadInput(stdin)
	if err != nil {
		return err
	}
	shim, commit, _ := buildOf()
	r := &types.RuntimeInfo{
		Name:    runtimeName,
		Version: &types.RuntimeVersion{Version: shim, Revision: commit},
	}
	if r.Annotations, err = hostAnnotations(); err != nil {
		return err
	}
	maps.Copy(r.Annotations, defaultsAnnotations(options.DefaultFile))
	if len(input) > 0 {
		var opts anypb.Any
		if err := proto.Unmarshal(input, &opts); err != nil {
			return fmt.Errorf("decode options on stdin, %d bytes: %w: %w", len(input), err, errdefs.ErrInvalidArgument)
		}
		r.Options = &opts
	}
	body, err := json.Marshal(f)
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

// prefix begins the name of each annotation.
const prefix = runtimeName + "/"

// hostAnnotations returns annotations that say, for schedulers that place tasks on nodes, what this shim has and finds
// on this machine. The features document next to them describes only the runtime. docs/executors.md has the table.
func hostAnnotations() (map[string]string, error) {
	mode := cgroups.Mode()
	list, err := controllers(mode)
	if err != nil {
		return nil, fmt.Errorf("find the kernel's cgroup controllers: %w", err)
	}
	return map[string]string{
		prefix + "cgroup.mode":        cgroupModes[mode],
		prefix + "cgroup.controllers": strings.Join(list, ","),
		prefix + "cgroup.drivers":     strings.Join(ociruntime.Drivers(), ","),
		prefix + "seccomp":            ociruntime.SeccompVersion(),
		prefix + "exec-launcher":      strconv.FormatBool(ociruntime.HasLauncher()),
		prefix + "criu":               ociruntime.CRIUPath(),
		prefix + "settings":           strings.Join(extensions().Settings().Names(), ","),
	}, nil
}

// defaultsAnnotations returns annotations that show the default configuration file, or what is wrong with it. That is
// no error of -info: it does not concern containers with options of their own.
func defaultsAnnotations(file string) map[string]string {
	text, err := readDefaults(file)
	shown := map[string]string{prefix + "config": text}
	if err != nil {
		shown[prefix+"config.error"] = err.Error()
	}
	return shown
}

var cgroupModes = map[cgroups.CGMode]string{
	cgroups.Unavailable: "none", cgroups.Legacy: "v1", cgroups.Hybrid: "hybrid", cgroups.Unified: "v2",
}

// controllers returns those of the kernel that a cgroup of a container can have, in alphabetical order.
func controllers(mode cgroups.CGMode) (list []string, err error) {
	file := "/proc/cgroups" // cgroups(7): name, hierarchy, number of cgroups, enabled
	if mode == cgroups.Unified {
		file = "/sys/fs/cgroup/cgroup.controllers"
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // without the file there are none
		return nil, err
	}
	if mode == cgroups.Unified {
		list = strings.Fields(string(text))
	} else {
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 4 && f[1] != "0" && f[3] == "1" {
				list = append(list, f[0])
			}
		}
	}
	slices.Sort(list)
	return list, nil
}

// version and revision are set by the linker (-X main.version=... -X main.revision=...). They stay empty in a plain
// `go build` or `go install`, where the build information answers instead.
var (
	version  string
	revision string
)

// buildOf returns what this binary is made of: the linker's values, and the build information for what they leave open.
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

// versionText returns the answer to -v, in the form of containerd's own shims (pkg/shim/shim.go), with two lines of
// ours.
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
