// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/moby/sys/userns"
	"google.golang.org/protobuf/types/known/anypb"
)

// DefaultFile is the default configuration file: it has the options of containers for which containerd sends none. It
// has the keys of the TOML form, and tables [namespace.NAME] with the same keys, each of which replaces the keys above
// the tables for one namespace of containerd.
const DefaultFile = "/etc/containerd-shim-sandbox-v1/config.toml"

// Defaults decodes options. It reads the default configuration file whenever it is asked, so that a change of the file
// applies to the next container. Its methods are safe for concurrent use.
type Defaults struct {
	path     string
	settings []Key
	ignored  sync.Once // logs that an option has no effect
}

// NewDefaults returns the Defaults of the file at path, which need not exist. settings are the keys of
// [Options.Settings].
func NewDefaults(path string, settings ...Key) *Defaults {
	return &Defaults{path: path, settings: settings}
}

// Decode decodes options. It takes them from the file if a sets none except for IoUid and IoGid, which containerd 2.x
// adds itself for a pod with a user namespace. Without a file there are none. Errors name the key, and the file if it
// is from there; their class is errdefs.ErrInvalidArgument.
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

// All returns the options of the file by namespace, and those of all other namespaces under the empty name. Without a
// file, and for a shim that is root only in a user namespace, there are none.
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
