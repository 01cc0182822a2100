// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/pkg/unixfile"
)

// bundle ends and removes what a bundle names, and then the bundle. While there is a bundle, containerd makes none of
// the same id, so that no shim can be started in it meanwhile.
func (r Remover) bundle(ctx context.Context, l leftover.Leftover) error {
	parent, dir, err := openBelow(r.State, l.Path)
	if err != nil {
		return err
	}
	defer parent.Close() //nolint:errcheck // opened for reading
	defer dir.Close()    //nolint:errcheck // likewise
	if l.Target.Hidden { // the delete command ran before it was hidden
		if err := unmountAll(l.Target.Mounts); err != nil {
			return err
		}
		return r.removeBundle(ctx, parent, dir, filepath.Base(l.Path))
	}
	if err := r.checkAll(l.Target); err != nil {
		return err
	}
	if err := r.runDelete(ctx, l.Target.Name, l.Target.Binary, l.Path); err != nil {
		return err
	}
	now, err := r.again(ctx, l)
	if err != nil {
		return err
	}
	if same, err := is(parent, filepath.Base(l.Path), dir); now == nil && (err != nil || same) {
		return errors.Join(fmt.Errorf("%s is in use by now", l.Path), err)
	}
	return r.removeBundle(ctx, parent, dir, filepath.Base(l.Path))
}

// checkAll refuses what the delete command would follow through a symbolic link or a mount.
func (r Remover) checkAll(t leftover.Target) error {
	for _, bundle := range t.Bundles {
		parent, dir, err := openBelow(r.State, bundle)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = checkInside(dir)
		if err = errors.Join(err, dir.Close(), parent.Close()); err != nil {
			return err
		}
	}
	for _, state := range t.States {
		// NAMESPACE/ID below the directory of all states
		parent, dir, err := openBelow(filepath.Dir(filepath.Dir(state)), state)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(dir.Close(), parent.Close()); err != nil {
			return err
		}
	}
	return nil
}

// checkInside looks at what shims make in a bundle and mount something at: directories, not links to some. It asks no
// file system that is mounted there, which may not answer.
func checkInside(bundle *os.File) error {
	for _, name := range []string{"rootfs", "host-rootfs", "etc", "shm"} {
		dir, err := pathIn(bundle, name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		_ = dir.Close() // opened as a path
	}
	return nil
}

// removeBundle removes a bundle as containerd does: first its name, under which another can be made from then on.
func (r Remover) removeBundle(ctx context.Context, parent, dir *os.File, name string) error {
	unlock, err := unixfile.TryLock(inFD(dir)) // the delete command has it while it works
	if err != nil {
		return fmt.Errorf("%s: %w", dir.Name(), err)
	}
	defer unlock()
	if err := nothingMounted(dir.Name()); err != nil {
		return err
	}
	if same, err := is(parent, name, dir); err != nil || !same {
		return err // containerd has removed it
	}
	// What is in there was mounted, and is not the bundle's.
	if err := unlink(dir, "rootfs", unix.AT_REMOVEDIR); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	work, workErr := os.Readlink(inFD(dir, "work"))
	hidden := name
	if name[0] != '.' {
		hidden = "." + name
		fd := int(parent.Fd())
		if err := unix.Renameat2(fd, name, fd, hidden, unix.RENAME_NOREPLACE); err != nil {
			return &os.LinkError{Op: "rename", Old: dir.Name(), New: hidden, Err: err}
		}
		if same, err := is(parent, hidden, dir); err != nil || !same {
			return errors.Join(fmt.Errorf("%s was made anew meanwhile", dir.Name()), err,
				unix.Renameat2(fd, hidden, fd, name, unix.RENAME_NOREPLACE))
		}
	}
	if err := empty(dir); err != nil {
		return err
	}
	if err := unlink(parent, hidden, unix.AT_REMOVEDIR); err != nil {
		return err
	}
	if workErr == nil {
		removeWork(work, filepath.Join(filepath.Base(filepath.Dir(dir.Name())), name))
	}
	return ctx.Err()
}

// removeWork removes the directory that containerd made along with a bundle, if it is empty. One that is not empty does
// no harm: containerd removes it when it makes a bundle of the same id, and when it starts.
func removeWork(work, name string) {
	kind := filepath.Dir(filepath.Dir(work))
	if !filepath.IsAbs(work) || work != filepath.Join(kind, name) {
		return
	}
	parent, err := openTop(filepath.Dir(work))
	if err != nil {
		return
	}
	_ = unlink(parent, filepath.Base(work), unix.AT_REMOVEDIR) // as above
	_ = parent.Close()                                         // opened for reading
}

// nothingMounted returns an error if there is a mount at a directory or below.
func nothingMounted(dir string) error {
	mounts, err := machine.Root("/").Mounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if machine.Within(dir, m.Mountpoint) {
			return fmt.Errorf("%s is still mounted", m.Mountpoint)
		}
	}
	return nil
}

// stateDirectory ends and removes a container of which the state directory is left. Meanwhile it has a bundle of the
// same id, as containerd has for each container, so that none is made.
func (r Remover) stateDirectory(ctx context.Context, l leftover.Leftover) error {
	reserved, err := r.reserve(l.Target.Bundles[0])
	if err != nil {
		return err
	}
	defer reserved.release()
	now, err := r.again(ctx, l) // nobody can have made it since
	if err != nil {
		return err
	}
	if now == nil {
		return ErrGone
	}
	if err := r.checkAll(now.Target); err != nil {
		return err
	}
	if err := r.runDelete(ctx, l.Target.Name, "", l.Target.Bundles[0]); err != nil {
		return err
	}
	switch _, err := os.Lstat(l.Path); {
	case errors.Is(err, os.ErrNotExist):
		reserved.removable = true
		return nil
	case err != nil:
		return fmt.Errorf("whether the delete command has removed it: %w", err)
	}
	return fmt.Errorf("%s is still there after the delete command", l.Path)
}
