// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package options decodes the runtime options of a container: containerd.runc.v1.Options (ctr, Docker),
// runtimeoptions.v1.Options with a TOML table or file (CRI, ctr --runtime-config-path), or none. The keys of TOML are
// the fields of containerd.runc.v1.Options, as for the runc shim, and those of this shim. An unknown key is an error.
package options

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/moby/sys/userns"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/limit"
)

// Options of a container. Down to SystemdCgroup they are those of containerd.runc.v1.Options.
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
	PodsPerShim            int      // how many pods, or containers outside of pods, may share a shim; 0 is 1
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

// MostPodsPerShim is the most that PodsPerShim can be: what a shim takes along when it is killed.
const MostPodsPerShim = 1000

// SharesShims reports whether a shim may have more than one pod.
func (o Options) SharesShims() bool { return o.PodsPerShim > 1 }

// Origin names the source of the options in messages.
func (o Options) Origin() string { return cmp.Or(o.File, "runtime options") }

// DefaultRoot is the directory of the runc shim's state directories too, where tools look for containers.
const DefaultRoot = "/run/containerd/runc"

const (
	runcOptions    = "containerd.runc.v1.Options"
	genericOptions = "runtimeoptions.v1.Options"
)

// Known reports whether Decode accepts messages of this type URL.
func Known(typeURL string) bool {
	return slices.Contains([]string{"", runcOptions, genericOptions}, message(typeURL))
}

// message returns the message's name: the last element of the type URL.
func message(typeURL string) string { return typeURL[strings.LastIndexByte(typeURL, '/')+1:] }

func (o Options) check() error {
	if o.Root != "" && !strings.HasPrefix(o.Root, "/") {
		return fmt.Errorf("Root %q: must be an absolute path", o.Root) //nolint:staticcheck // the name of a key
	}
	if o.PodsPerShim < 0 || o.PodsPerShim > MostPodsPerShim {
		return fmt.Errorf("PodsPerShim %d: must be between 1 and %d", o.PodsPerShim, MostPodsPerShim)
	}
	// A tmpfs of size 0 has no limit.
	if n, ok := limit.ParseSize(o.MaxShmSize); o.MaxShmSize != "" && (!ok || n == 0) {
		return fmt.Errorf("MaxShmSize %q: must be a size in bytes such as 67108864 or 64Mi, at least 1", o.MaxShmSize)
	}
	return nil
}

// decodeMessage decodes options. set is false if the message sets none but IoUid and IoGid.
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
	case genericOptions:
		var m runtimeoptions.Options
		if err := proto.Unmarshal(a.GetValue(), &m); err != nil {
			return Options{}, false, fmt.Errorf("decode %s: %w", name, err)
		}
		return d.decodeGeneric(&m)
	default:
		return Options{}, false, fmt.Errorf("type %q: want %s or %s", a.GetTypeUrl(), runcOptions, genericOptions)
	}
}

// decodeGeneric prefers the file, as containerd does (internal/cri/config, GenerateRuntimeOptions).
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

// fromTable reads a table of TOML, which it changes, by way of JSON, whose decoder refuses unknown keys. Keys are not
// case-sensitive.
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

// DefaultFile has the options of containers for which containerd sends none, in TOML. A table [namespace.NAME]
// replaces the keys above the tables for one namespace of containerd.
const DefaultFile = "/etc/containerd-shim-sandbox-v1/config.toml"

// Defaults decodes options. It reads the default configuration file at each call. Its methods are safe for concurrent
// use.
type Defaults struct {
	path     string
	settings []Key
	ignored  sync.Once // logs that an option has no effect
}

// NewDefaults returns the Defaults of the file at path, which need not exist, and of settings' keys.
func NewDefaults(path string, settings ...Key) *Defaults {
	return &Defaults{path: path, settings: settings}
}

// Decode decodes options. It takes them from the file if a sets none except for IoUid and IoGid, which containerd 2.x
// adds itself for a pod with a user namespace.
func (d *Defaults) Decode(a *anypb.Any, namespace string) (Options, error) {
	o, set, err := d.decodeMessage(a)
	if err != nil {
		return Options{}, fmt.Errorf("%s: %w: %w", Options{}.Origin(), err, errdefs.ErrInvalidArgument)
	}
	if !set {
		all, err := d.All()
		if err != nil {
			return Options{}, err
		}
		uid, gid, ofNamespace := o.IoUid, o.IoGid, false
		if o, ofNamespace = all[namespace]; !ofNamespace {
			o = all[""]
		}
		if uid != 0 || gid != 0 {
			o.IoUid, o.IoGid = uid, gid
		}
	}
	if o.BinaryName != "" {
		d.ignored.Do(func() {
			log.L.WithField("BinaryName", o.BinaryName).WithField("from", o.Origin()).
				Warn("the option BinaryName has no effect: this shim runs no runtime binary")
		})
	}
	return o, nil
}

// All returns the options of the file by namespace, with "" for all others. In a user namespace there are none.
func (d *Defaults) All() (map[string]Options, error) {
	if userns.RunningInUserNS() {
		return nil, nil
	}
	body, err := os.ReadFile(d.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("default configuration: %w", err)
	}
	return d.parse(body)
}

func (d *Defaults) parse(body []byte) (map[string]Options, error) {
	all := map[string]Options{}
	table, err := parseTOML(body)
	if namespaces, ok := table["namespace"].(map[string]any); ok {
		delete(table, "namespace")
		for _, name := range slices.Sorted(maps.Keys(namespaces)) {
			one, ok := namespaces[name].(map[string]any)
			if !ok && err == nil {
				err = errors.New("must be a table")
			}
			if err == nil {
				all[name], err = d.fromTable(one)
			}
			if err != nil {
				err = fmt.Errorf("namespace.%s: %w", name, err)
				break
			}
		}
	}
	if err == nil {
		all[""], err = d.fromTable(table)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", d.path, err, errdefs.ErrInvalidArgument)
	}
	for name, o := range all {
		o.File = d.path
		all[name] = o
	}
	return all, nil
}
