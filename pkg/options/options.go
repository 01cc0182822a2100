// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package options decodes the runtime options of a container, in each form in which containerd sends them:
// containerd.runc.v1.Options (ctr, Docker and others that know the runtime by its options), runtimeoptions.v1.Options
// with a TOML table or file (CRI, ctr --runtime-config-path), or none.
//
// The keys of the TOML form are the field names of containerd.runc.v1.Options, as CRI has them for the runc shim, so
// that a configuration can be moved over unchanged, and keys that only this shim has. An unknown key is an error: a
// misspelt limit must not be ignored.
package options

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/limit"
)

// Options are what can be set for a container. Down to SystemdCgroup they have the names and the meaning of
// containerd.runc.v1.Options.
type Options struct {
	NoPivotRoot    bool   // MS_MOVE instead of pivot_root, for a root file system on a ramdisk
	NoNewKeyring   bool   // share the shim's session keyring
	ShimCgroup     string // cgroup for the shim itself
	IoUid          uint32 //nolint:revive // the field's name on the wire
	IoGid          uint32 //nolint:revive // the field's name on the wire
	BinaryName     string // accepted for drop-in use; has no effect, since no runtime binary is run
	Root           string // state directories; DefaultRoot when empty
	CriuImagePath  string // containerd's client reads it, and passes it on as the checkpoint
	CriuWorkPath   string // for the log of a restore; a directory in the bundle when empty
	CriuPath       string // the criu that is wanted; it must be the one in PATH, which is the one that is run
	SystemdCgroup  bool   // cgroupsPath must be slice:prefix:name
	CpusetSource   string // cgroups of which every container that asks for none gets the CPUs (pkg/settings)
	CpusetMems     bool   // and its memory nodes
	StopSignal     string // that asks a container to end; SIGTERM when empty
	HostRootfs     string // directories of the host that every container has (pkg/hostrootfs)
	HostRootfsMask string // what in them is not shown
	HostRootfsUser string // of the host, as whom such a container runs
	Init           bool   // a small init reaps and forwards signals
	PidFile        string // of init; {id} and {namespace} stand for the container's
	StopTimeout    string // until it is killed (pkg/task, Container.Stop)
	Notify         bool   // Start waits until init reports that it is ready
	NotifyTimeout  string // for how long
	ExecLimits     string // of each exec (pkg/limit)
	VerdictFile    string // where verdicts on execs are written; {id}, {namespace} and {exec} stand for the exec's
	Listen         string // sockets that init finds open

	HostRootfsTaskDir      string   // in such a container, where programs are looked up first
	MaxShmSize             string   // of what a pod asks for its /dev/shm (pkg/pod/files.go)
	AllowUnsafeAnnotations []string // those that may give access to the host (pkg/settings, UnsafeAnnotations)

	File string `toml:"-"` // the default configuration file that these are from; empty for those of containerd
}

// Origin names where the options are from, for messages.
func (o Options) Origin() string { return cmp.Or(o.File, "runtime options") }

// DefaultRoot is where the runc shim keeps its state directories too, so that tools that look there find our
// containers.
const DefaultRoot = "/run/containerd/runc"

// Known reports whether Decode accepts messages of this type URL.
func Known(typeURL string) bool {
	return slices.Contains([]string{"", runcOptions, genericOptions, oldGenericOptions}, message(typeURL))
}

const (
	runcOptions       = "containerd.runc.v1.Options"
	genericOptions    = "runtimeoptions.v1.Options"
	oldGenericOptions = "cri.runtimeoptions.v1.Options" // CRI's name for it before containerd 1.3; the same fields
)

// message returns the message's name: what follows the last slash of the type URL (google.protobuf.Any, type_url).
// containerd writes a URL without a slash.
func message(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '/')+1:] }

// Decode reads options; nil and an empty message are none. Errors are of class errdefs.ErrInvalidArgument and name the
// key.
func Decode(a *anypb.Any) (Options, error) {
	o, err := decode(a)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return Options{}, fmt.Errorf("%s: %w: %w", o.Origin(), err, errdefs.ErrInvalidArgument)
	}
	return o, nil
}

func (o Options) check() error {
	if o.Root != "" && !strings.HasPrefix(o.Root, "/") {
		return fmt.Errorf("Root %q: must be an absolute path", o.Root) //nolint:staticcheck // the name of a key
	}
	if o.MaxShmSize != "" {
		// A tmpfs of size 0 has no limit.
		if n, ok := limit.ParseSize(o.MaxShmSize); !ok || n == 0 {
			return fmt.Errorf("MaxShmSize %q: must be a size in bytes such as 67108864 or 64Mi, at least 1", o.MaxShmSize)
		}
	}
	return nil
}

func decode(a *anypb.Any) (Options, error) {
	switch name := message(a.GetTypeUrl()); name {
	case "":
		return Options{}, nil
	case runcOptions:
		var m runc.Options
		if err := proto.Unmarshal(a.GetValue(), &m); err != nil {
			return Options{}, fmt.Errorf("decode %s: %w", name, err)
		}
		return Options{
			NoPivotRoot: m.NoPivotRoot, NoNewKeyring: m.NoNewKeyring, ShimCgroup: m.ShimCgroup,
			IoUid: m.IoUid, IoGid: m.IoGid, BinaryName: m.BinaryName, Root: m.Root,
			CriuImagePath: m.CriuImagePath, CriuWorkPath: m.CriuWorkPath, SystemdCgroup: m.SystemdCgroup,
		}, nil
	case genericOptions, oldGenericOptions:
		var m runtimeoptions.Options
		if err := proto.Unmarshal(a.GetValue(), &m); err != nil {
			return Options{}, fmt.Errorf("decode %s: %w", name, err)
		}
		return decodeGeneric(&m)
	default:
		return Options{}, fmt.Errorf("type %q: want %s or %s", a.GetTypeUrl(), runcOptions, genericOptions)
	}
}

// decodeGeneric prefers the file, as containerd does: it fills the body only if no path is configured
// (internal/cri/config, GenerateRuntimeOptions).
func decodeGeneric(m *runtimeoptions.Options) (Options, error) {
	source, body := "config_body", m.ConfigBody
	if path := m.ConfigPath; path != "" {
		var err error
		source = path
		if body, err = os.ReadFile(path); err != nil {
			return Options{}, fmt.Errorf("config_path: %w", err)
		}
	}
	var o Options
	if err := decodeTOML(body, &o); err != nil {
		return Options{}, fmt.Errorf("%s: %w", source, err)
	}
	return o, nil
}

// decodeTOML refuses keys that to, a pointer to a struct, has no field for.
func decodeTOML(body []byte, to any) error {
	d := toml.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if unknown, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		refused := make([]string, 0, len(unknown.Errors))
		for _, e := range unknown.Errors {
			refused = append(refused, strings.Join(e.Key(), "."))
		}
		return fmt.Errorf("unknown key %s; known are %s", strings.Join(refused, ", "), strings.Join(keys(), ", "))
	}
	wrong, ok := errors.AsType[*toml.DecodeError](err)
	if !ok {
		return err
	}
	row, _ := wrong.Position()
	line := strings.TrimSpace(strings.Split(string(body), "\n")[row-1])
	if toml.Unmarshal(body, &map[string]any{}) != nil {
		return fmt.Errorf("line %d, %q: not valid TOML: %w", row, line, err)
	}
	key := wrong.Key()
	must := form(key)
	if must == "" {
		return fmt.Errorf("line %d, %q: %w", row, line, err)
	}
	return fmt.Errorf("line %d, %q: %s must be %s", row, line, strings.Join(key, "."), must)
}

// form says which values a key has in TOML, whose decoder ignores its case; "" if it is not that of an option.
func form(key toml.Key) string {
	if len(key) == 3 && strings.EqualFold(key[0], "namespace") { // and its name
		key = key[2:]
	}
	if len(key) != 1 {
		return ""
	}
	f, ok := reflect.TypeFor[Options]().FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, key[0]) })
	if !ok {
		return ""
	}
	return map[reflect.Kind]string{
		reflect.String: "a string, in quotes",
		reflect.Bool:   "true or false, without quotes",
		reflect.Uint32: fmt.Sprintf("a whole number from 0 to %d, without quotes", uint32(math.MaxUint32)),
		reflect.Slice:  `a list of strings, such as ["a", "b"]`,
	}[f.Type.Kind()]
}

// keys returns the keys of options in TOML.
func keys() (names []string) {
	for f := range reflect.TypeFor[Options]().Fields() {
		if f.Tag.Get("toml") != "-" {
			names = append(names, f.Name)
		}
	}
	return names
}
