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
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/limit"
)

// Options are what can be set for a container. Down to SystemdCgroup they have the names and the meaning of
// containerd.runc.v1.Options.
type Options struct {
	NoPivotRoot   bool   // MS_MOVE instead of pivot_root, for a root file system on a ramdisk
	NoNewKeyring  bool   // share the shim's session keyring
	ShimCgroup    string // cgroup for the shim itself
	IoUid         uint32 //nolint:revive // the field's name on the wire
	IoGid         uint32 //nolint:revive // the field's name on the wire
	BinaryName    string // accepted for drop-in use; has no effect, since no runtime binary is run
	Root          string // state directories; DefaultRoot when empty
	CriuImagePath string // containerd's client reads it, and passes it on as the checkpoint
	CriuWorkPath  string // for the log of a restore; a directory in the bundle when empty
	CriuPath      string // the criu that is wanted; it must be the one in PATH, which is the one that is run
	SystemdCgroup bool   // cgroupsPath must be slice:prefix:name

	MaxShmSize             string   // of what a pod asks for its /dev/shm (pkg/pod/files.go)
	AllowUnsafeAnnotations []string // those that may give access to the host (pkg/settings, Table.Unsafe)

	// Settings are the options that an annotation overrides (pkg/settings), by their keys: a text, or true or false.
	Settings map[string]string
	File     string // the default configuration file that these are from; empty for those of containerd
}

// Key is the key of an option in [Options.Settings].
type Key struct {
	Name string
	Bool bool // the value is true or false in TOML, and not a string
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

// decodeMessage reads options; nil and an empty message are none.
func (d *Defaults) decodeMessage(a *anypb.Any) (Options, error) {
	switch name := message(a.GetTypeUrl()); name {
	case "":
		return Options{}, nil
	case runcOptions:
		var m runc.Options
		if err := proto.Unmarshal(a.GetValue(), &m); err != nil {
			return Options{}, fmt.Errorf("decode %s: %w", name, err)
		}
		o := Options{
			NoPivotRoot: m.NoPivotRoot, NoNewKeyring: m.NoNewKeyring, ShimCgroup: m.ShimCgroup,
			IoUid: m.IoUid, IoGid: m.IoGid, BinaryName: m.BinaryName, Root: m.Root,
			CriuImagePath: m.CriuImagePath, CriuWorkPath: m.CriuWorkPath, SystemdCgroup: m.SystemdCgroup,
		}
		return o, o.check()
	case genericOptions, oldGenericOptions:
		var m runtimeoptions.Options
		if err := proto.Unmarshal(a.GetValue(), &m); err != nil {
			return Options{}, fmt.Errorf("decode %s: %w", name, err)
		}
		return d.decodeGeneric(&m)
	default:
		return Options{}, fmt.Errorf("type %q: want %s or %s", a.GetTypeUrl(), runcOptions, genericOptions)
	}
}

// decodeGeneric prefers the file, as containerd does: it fills the body only if no path is configured
// (internal/cri/config, GenerateRuntimeOptions).
func (d *Defaults) decodeGeneric(m *runtimeoptions.Options) (Options, error) {
	source, body := "config_body", m.ConfigBody
	if path := m.ConfigPath; path != "" {
		var err error
		source = path
		if body, err = os.ReadFile(path); err != nil {
			return Options{}, fmt.Errorf("config_path: %w", err)
		}
	}
	var o Options
	table, err := parseTOML(body)
	if err == nil {
		o, err = d.fromTable(table, "")
	}
	if err != nil {
		return Options{}, fmt.Errorf("%s: %w", source, err)
	}
	return o, nil
}

func parseTOML(body []byte) (table map[string]any, err error) {
	err = toml.Unmarshal(body, &table)
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, _ := wrong.Position()
		return nil, fmt.Errorf("line %d: not valid TOML: %w", row, err)
	}
	return table, err
}

// forms describe the values of an option in TOML by the kind of its field.
var forms = map[reflect.Kind]string{
	reflect.String: "a string, in quotes",
	reflect.Bool:   "true or false, without quotes",
	reflect.Uint32: fmt.Sprintf("a whole number from 0 to %d, without quotes", uint32(math.MaxUint32)),
	reflect.Slice:  `a list of strings, such as ["a", "b"]`,
}

// fromTable reads the options in a table of TOML. Keys are not case-sensitive. at, which ends in a dot, is the path of
// the table in messages; "" for the outermost one.
func (d *Defaults) fromTable(table map[string]any, at string) (o Options, err error) {
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(table)) {
		to, name := d.field(&o, key)
		if !to.IsValid() {
			unknown = append(unknown, at+key)
			continue
		}
		text, err := json.Marshal(table[key])
		if err == nil {
			err = json.Unmarshal(text, to.Addr().Interface())
		}
		if err != nil {
			return Options{}, fmt.Errorf("%s%s %s: must be %s", at, key, text, forms[to.Kind()])
		}
		if name != "" {
			if o.Settings == nil {
				o.Settings = map[string]string{}
			}
			o.Settings[name] = fmt.Sprint(to)
		}
	}
	if len(unknown) > 0 {
		return Options{}, fmt.Errorf("unknown key %s; known are %s",
			strings.Join(unknown, ", "), strings.Join(d.keys(), ", "))
	}
	return o, o.check()
}

// field returns the field of o that has a key; for a key of [Options.Settings] a new variable and the key's name.
func (d *Defaults) field(o *Options, key string) (to reflect.Value, setting string) {
	if !slices.ContainsFunc(d.keys(), func(k string) bool { return strings.EqualFold(k, key) }) {
		return reflect.Value{}, ""
	}
	for _, k := range d.settings {
		switch {
		case !strings.EqualFold(k.Name, key):
		case k.Bool:
			return reflect.New(reflect.TypeFor[bool]()).Elem(), k.Name
		default:
			return reflect.New(reflect.TypeFor[string]()).Elem(), k.Name
		}
	}
	return reflect.ValueOf(o).Elem().FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, key) }), ""
}

// keys returns the keys of options in TOML.
func (d *Defaults) keys() (names []string) {
	for f := range reflect.TypeFor[Options]().Fields() {
		if f.Name != "Settings" && f.Name != "File" {
			names = append(names, f.Name)
		}
	}
	for _, k := range d.settings {
		names = append(names, k.Name)
	}
	return names
}
