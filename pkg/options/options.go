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
	"encoding/json"
	"errors"
	"fmt"
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
	Settings map[string]string `json:"-"`
	File     string            `json:"-"` // the default configuration file; empty for options of containerd
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

const (
	runcOptions       = "containerd.runc.v1.Options"
	genericOptions    = "runtimeoptions.v1.Options"
	oldGenericOptions = "cri.runtimeoptions.v1.Options" // CRI's name for it before containerd 1.3; the same fields
)

// Known reports whether Decode accepts messages of this type URL.
func Known(typeURL string) bool {
	return slices.Contains([]string{"", runcOptions, genericOptions, oldGenericOptions}, message(typeURL))
}

// message returns the message's name: what follows the last slash of the type URL (google.protobuf.Any, type_url).
// containerd writes a URL without a slash.
func message(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '/')+1:] }

func (o Options) check() error {
	if o.Root != "" && !strings.HasPrefix(o.Root, "/") {
		return fmt.Errorf("Root %q: must be an absolute path", o.Root) //nolint:staticcheck // the name of a key
	}
	// A tmpfs of size 0 has no limit.
	if n, ok := limit.ParseSize(o.MaxShmSize); o.MaxShmSize != "" && (!ok || n == 0) {
		return fmt.Errorf("MaxShmSize %q: must be a size in bytes such as 67108864 or 64Mi, at least 1", o.MaxShmSize)
	}
	return nil
}

// decodeMessage reads options; nil and an empty message are none. set is false if the message sets none but IoUid and
// IoGid.
func (d *Defaults) decodeMessage(a *anypb.Any) (o Options, set bool, err error) {
	switch name := message(a.GetTypeUrl()); name {
	case "":
		return Options{}, false, nil
	case runcOptions:
		var m runc.Options
		if err := proto.Unmarshal(a.GetValue(), &m); err != nil {
			return Options{}, false, fmt.Errorf("decode %s: %w", name, err)
		}
		o := Options{
			NoPivotRoot: m.NoPivotRoot, NoNewKeyring: m.NoNewKeyring, ShimCgroup: m.ShimCgroup, BinaryName: m.BinaryName,
			Root: m.Root, CriuImagePath: m.CriuImagePath, CriuWorkPath: m.CriuWorkPath, SystemdCgroup: m.SystemdCgroup,
		}
		set := !reflect.ValueOf(o).IsZero()
		o.IoUid, o.IoGid = m.IoUid, m.IoGid
		return o, set, o.check()
	case genericOptions, oldGenericOptions:
		var m runtimeoptions.Options
		if err := proto.Unmarshal(a.GetValue(), &m); err != nil {
			return Options{}, false, fmt.Errorf("decode %s: %w", name, err)
		}
		return d.decodeGeneric(&m)
	default:
		return Options{}, false, fmt.Errorf("type %q: want %s or %s", a.GetTypeUrl(), runcOptions, genericOptions)
	}
}

// decodeGeneric prefers the file, as containerd does: it fills the body only if no path is configured
// (internal/cri/config, GenerateRuntimeOptions).
func (d *Defaults) decodeGeneric(m *runtimeoptions.Options) (o Options, set bool, err error) {
	source, body := "config_body", m.ConfigBody
	if m.ConfigPath != "" {
		source = m.ConfigPath
		if body, err = os.ReadFile(source); err != nil {
			return Options{}, false, fmt.Errorf("config_path: %w", err)
		}
	}
	table, err := parseTOML(body)
	if err == nil {
		o, err = d.fromTable(table)
	}
	if err != nil {
		return Options{}, false, fmt.Errorf("%s: %w", source, err)
	}
	return o, len(bytes.TrimSpace(body)) > 0, nil
}

func parseTOML(body []byte) (table map[string]any, err error) {
	err = toml.Unmarshal(body, &table)
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, _ := wrong.Position()
		return nil, fmt.Errorf("line %d: %w", row, err)
	}
	return table, err
}

// fromTable reads the options in a table of TOML, which it changes, by way of JSON, whose decoder refuses unknown keys. Keys are not case-sensitive.
func (d *Defaults) fromTable(table map[string]any) (o Options, err error) {
	settings := map[string]string{}
	for key, value := range table {
		i := slices.IndexFunc(d.settings, func(k Key) bool { return strings.EqualFold(k.Name, key) })
		if i < 0 {
			continue
		}
		delete(table, key)
		_, isBool := value.(bool)
		_, isText := value.(string)
		switch k := d.settings[i]; {
		case k.Bool && !isBool:
			return Options{}, fmt.Errorf("%s %v: must be true or false, without quotes", key, value)
		case !k.Bool && !isText:
			return Options{}, fmt.Errorf("%s %v: must be a string, in quotes", key, value)
		default:
			settings[k.Name] = fmt.Sprint(value)
		}
	}
	if len(settings) > 0 {
		o.Settings = settings
	}
	text, err := json.Marshal(table)
	if err != nil {
		return Options{}, err
	}
	fields := json.NewDecoder(bytes.NewReader(text))
	fields.DisallowUnknownFields()
	err = fields.Decode(&o)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return Options{}, fmt.Errorf("%s: must be a %s, is a %s", wrong.Field, wrong.Type, wrong.Value)
	}
	if err != nil {
		return Options{}, errors.New(strings.Replace(err.Error(), "json: unknown field", "unknown key", 1))
	}
	return o, o.check()
}
