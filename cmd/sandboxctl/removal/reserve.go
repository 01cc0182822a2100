// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/unixfile"
)

// reservation is a bundle that keeps others from making one of the same id.
type reservation struct {
	kind, parent *os.File
	namespace    string // in kind, if it was made for this; else empty
	name         string // in parent
	removable    bool   // it is nobody else's: it was made for this, or its container is removed
}

// reserve makes an empty bundle, or takes one that has only directories, such as one left by somebody who removed a
// bundle by hand, or by this program when it was killed. containerd removes an empty one when it starts.
func (r Remover) reserve(bundle string) (*reservation, error) {
	namespace := filepath.Dir(bundle)
	top, err := openTop(r.State)
	if err != nil {
		return nil, err
	}
	defer top.Close() //nolint:errcheck // opened for reading
	v := &reservation{name: filepath.Base(bundle)}
	if v.kind, err = unchangeable(openIn(top, filepath.Base(filepath.Dir(namespace)))); err != nil {
		return nil, err
	}
	const mode, bundleMode = 0o711, 0o700 // as containerd makes them
	switch err := unix.Mkdirat(int(v.kind.Fd()), filepath.Base(namespace), mode); {
	case err == nil:
		v.namespace = filepath.Base(namespace)
	case !errors.Is(err, unix.EEXIST):
		return nil, errors.Join(fmt.Errorf("make %s: %w", namespace, err), v.kind.Close())
	}
	if v.parent, err = unchangeable(openIn(v.kind, filepath.Base(namespace))); err != nil {
		v.release()
		return nil, err
	}
	err = unix.Mkdirat(int(v.parent.Fd()), v.name, bundleMode)
	v.removable = err == nil
	if errors.Is(err, unix.EEXIST) {
		err = v.takesBare()
	}
	if err != nil {
		v.release()
		return nil, fmt.Errorf("take %s, so that no container of the same id is made: %w", bundle, err)
	}
	return v, nil
}

// takesBare refuses a bundle in which there is more than directories that are empty, or at which something is mounted.
// containerd records a container before it makes its bundle: if a bundle is just being made, its container is known.
func (v *reservation) takesBare() error {
	dir, err := unchangeable(openIn(v.parent, v.name))
	if err != nil {
		return err
	}
	defer dir.Close()                          //nolint:errcheck // opened for reading
	unlock, err := unixfile.TryLock(inFD(dir)) // the delete command has it while it works, and needs it after this
	if err != nil {
		return err
	}
	defer unlock()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		sub, err := openIn(dir, name)
		if errors.Is(err, unix.EXDEV) {
			continue
		}
		if err != nil {
			return err
		}
		inside, err := sub.Readdirnames(-1)
		if err = errors.Join(err, sub.Close()); err != nil {
			return err
		}
		if len(inside) > 0 {
			return fmt.Errorf("%s is not empty", sub.Name())
		}
	}
	return nil
}

// release removes what is there now, except for what is mounted or in use.
func (v *reservation) release() {
	if v.parent != nil {
		if v.removable {
			if dir, err := openIn(v.parent, v.name); err == nil { // containerd may have removed it
				names, _ := dir.Readdirnames(-1) // what stays is found as a leftover, or is empty
				for _, name := range names {
					_ = unlink(dir, name, unix.AT_REMOVEDIR) // as above
				}
				_ = dir.Close() // opened for reading
			}
			_ = unlink(v.parent, v.name, unix.AT_REMOVEDIR) // as above
		}
		_ = v.parent.Close() // opened for reading
	}
	if v.namespace != "" {
		_ = unlink(v.kind, v.namespace, unix.AT_REMOVEDIR) // somebody may use it by now
	}
	_ = v.kind.Close() // opened for reading
}
