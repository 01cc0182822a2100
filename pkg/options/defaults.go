// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// DefaultFile is the default configuration file: it has the options of containers for which containerd sends none. It
// has the keys of the TOML form, and tables [namespace.NAME] with the same keys, each of which replaces the keys above
// the tables for one namespace of containerd.
const DefaultFile = "/etc/containerd-shim-sandbox-v1/config.toml"

// maxDefaults bounds the file's size, in bytes.
const maxDefaults = 1 << 20

// Defaults decodes options. It reads the default configuration file whenever it is asked, so that a change of the file
// applies to the next container. Its methods are safe for concurrent use.
type Defaults struct {
	path     string
	settings []Key
	ignored  sync.Once // logs that an option has no effect

	mu sync.Mutex
	// +checklocks:mu
	logged string // content of the file, as JSON
}

// NewDefaults returns the Defaults of the file at path, which need not exist. settings are the keys of
// [Options.Settings].
func NewDefaults(path string, settings ...Key) *Defaults {
	return &Defaults{path: path, settings: settings}
}

// Decode decodes options. It takes them from the file if a sets none except for IoUid and IoGid, which containerd 2.x
// adds itself for a pod with a user namespace. Without a file there are none. Errors name the key, and the file if it
// is from there. Their class is errdefs.ErrInvalidArgument if the content is wrong, and errdefs.ErrFailedPrecondition
// if somebody other than root could write the file. An option that has no effect is logged once.
func (d *Defaults) Decode(a *anypb.Any, namespace string) (Options, error) {
	o, err := d.decode(a, namespace)
	if err == nil && o.BinaryName != "" {
		d.ignored.Do(func() {
			log.L.WithField("BinaryName", o.BinaryName).WithField("from", o.Origin()).
				Warn("the option BinaryName has no effect: this shim runs no runtime binary")
		})
	}
	return o, err
}

func (d *Defaults) decode(a *anypb.Any, namespace string) (Options, error) {
	sent, err := d.decodeMessage(a)
	if err != nil {
		return Options{}, fmt.Errorf("%s: %w: %w", sent.Origin(), err, errdefs.ErrInvalidArgument)
	}
	others := sent
	others.IoUid, others.IoGid = 0, 0
	if hasTOML(a) || !reflect.ValueOf(others).IsZero() {
		return sent, nil
	}
	all, text, err := d.All()
	if err != nil || all == nil {
		return sent, err
	}
	d.log(text)
	o, ok := all[namespace]
	if !ok || namespace == "" {
		o = all[""]
	}
	if sent.IoUid != 0 || sent.IoGid != 0 {
		o.IoUid, o.IoGid = sent.IoUid, sent.IoGid
	}
	return o, nil
}

// hasTOML reports whether a is TOML with any content, which may set a field to its zero value.
func hasTOML(a *anypb.Any) bool {
	if name := message(a.GetTypeUrl()); name != genericOptions && name != oldGenericOptions {
		return false
	}
	var m runtimeoptions.Options
	err := proto.Unmarshal(a.GetValue(), &m)
	return err == nil && (m.ConfigPath != "" || len(bytes.TrimSpace(m.ConfigBody)) > 0)
}

// All returns the options of the file by namespace, those of all other namespaces under the empty name, and the file as
// JSON. Without a file the map is nil. Errors are those of Decode.
func (d *Defaults) All() (byNamespace map[string]Options, text string, err error) {
	body, err := d.read()
	if err != nil || body == nil {
		return nil, "", err
	}
	return d.parse(body)
}

func (d *Defaults) parse(body []byte) (byNamespace map[string]Options, text string, err error) {
	byNamespace = map[string]Options{}
	table, err := parseTOML(body)
	shown, jsonErr := json.Marshal(table)
	if err = cmp.Or(err, jsonErr); err == nil {
		err = d.fromTables(table, byNamespace)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w: %w", d.path, err, errdefs.ErrInvalidArgument)
	}
	return byNamespace, string(shown), nil
}

// fromTables moves the tables of namespaces out of table.
func (d *Defaults) fromTables(table map[string]any, byNamespace map[string]Options) error {
	const key = "namespace"
	namespaces, ok := table[key].(map[string]any)
	if _, there := table[key]; there && !ok {
		return fmt.Errorf("%s %v: must be a table of tables", key, table[key])
	}
	delete(table, key)
	tables := map[string]any{"": table}
	for name, one := range namespaces {
		if name == "" {
			return errors.New("namespace '': must have a name")
		}
		tables[name] = one
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		at := ""
		if name != "" {
			at = key + "." + name + "."
		}
		one, ok := tables[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s %v: must be a table", strings.TrimSuffix(at, "."), tables[name])
		}
		o, err := d.fromTable(one, at)
		if err != nil {
			return err
		}
		o.File = d.path
		byNamespace[name] = o
	}
	return nil
}

// log logs the content once, and again when it has changed.
func (d *Defaults) log(text string) {
	d.mu.Lock()
	known := d.logged == text
	d.logged = text
	d.mu.Unlock()
	if !known {
		log.L.WithField("file", d.path).WithField("options", text).
			Info("containers without options of their own have those of the default configuration file")
	}
}

// read returns the content of the file, nil if there is none. The checks are those of sshd for its files (sshd(8),
// StrictModes). A shim that is root only in a user namespace has no such file: its owner cannot be known there.
func (d *Defaults) read() ([]byte, error) {
	if userns.RunningInUserNS() {
		return nil, nil
	}
	f, err := os.OpenFile(d.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%s: must not be a symbolic link: %w", d.path, errdefs.ErrFailedPrecondition)
	case err != nil:
		return nil, fmt.Errorf("default configuration: %w", err)
	}
	defer func() { _ = f.Close() }() // opened for reading only
	for dir := filepath.Dir(d.path); ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err == nil {
			err = checkSafe(dir, info, os.ModeDir)
		}
		if err != nil {
			return nil, fmt.Errorf("default configuration %s: %w", d.path, err)
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	info, err := f.Stat()
	if err == nil {
		err = checkSafe(d.path, info, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("default configuration: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(f, maxDefaults+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("default configuration: %w", err)
	case len(body) > maxDefaults:
		return nil, fmt.Errorf("%s: must have at most %d bytes: %w", d.path, maxDefaults, errdefs.ErrInvalidArgument)
	case body == nil:
		body = []byte{}
	}
	return body, nil
}

// checkSafe refuses what somebody other than root can change, and a file of a type other than kind.
func checkSafe(path string, info os.FileInfo, kind os.FileMode) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	var must []string
	if info.Mode().Type() != kind {
		must = append(must, map[os.FileMode]string{0: "be a regular file", os.ModeDir: "be a directory"}[kind])
	}
	if ok && stat.Uid != 0 {
		must = append(must, fmt.Sprintf("belong to root, not to user %d", stat.Uid))
	}
	const others = 0o022
	if info.Mode().Perm()&others != 0 {
		must = append(must, fmt.Sprintf("be writable by its owner alone, not have mode %04o", info.Mode().Perm()))
	}
	if len(must) == 0 {
		return nil
	}
	return fmt.Errorf("%s: must %s: %w", path, strings.Join(must, " and "), errdefs.ErrFailedPrecondition)
}
