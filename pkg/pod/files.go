// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/unixfile"
)

// The pod's two directories in its bundle. Containers write to both, so each is a file system in memory with a size of
// its own: the bundle lies in /run, which has room for the whole node.
const (
	etcDir = "etc"
	shmDir = "shm"
)

// etcFiles are the files in etcDir for /etc of the containers.
var etcFiles = []string{"hostname", "hosts", "resolv.conf"}

// Bounds on what containers write to etcDir, in addition to the first content of the files.
const (
	etcRoom   = 1 << 20
	etcInodes = 16 // the directory, the files, and what extended attributes count as
)

// devShm is the path in a container and on the host.
const devShm = "/dev/shm"

// etcContent is the first content of the files, by their names.
func (c Config) etcContent() (map[string]string, error) {
	name := c.Hostname
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return nil, err
		}
	}
	hosts, err := readHost("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost\n")
	if err != nil {
		return nil, err
	}
	resolv := resolvConf(c.DNS)
	if c.DNS == nil {
		if resolv, err = readHost("/etc/resolv.conf", ""); err != nil {
			return nil, err
		}
	}
	return map[string]string{"hostname": name + "\n", "hosts": hosts, "resolv.conf": resolv}, nil
}

// readHost reads a file of the host. It is missing where the host has none.
func readHost(path, missing string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return missing, nil
	}
	return string(data), err
}

// resolvConf is the content of a resolv.conf(5).
func resolvConf(d *DNSConfig) string {
	if d == nil {
		return ""
	}
	var b strings.Builder
	if len(d.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(d.Searches, " "))
	}
	for _, server := range d.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(d.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(d.Options, " "))
	}
	return b.String()
}

// makeFiles makes the files of /etc, and /dev/shm of shmSize bytes. They belong to the pod's root, since containers may
// change them, and have the SELinux context mountLabel if it is not empty. When it fails, it removes what it made.
func makeFiles(bundle string, c Config, shmSize uint64, mountLabel string) (err error) {
	content, err := c.etcContent()
	if err != nil {
		return err
	}
	var made []string
	defer func() {
		if err != nil {
			err = errors.Join(err, removeMounts(bundle, made))
		}
	}()
	for _, fs := range c.fileSystems(etcSize(content), shmSize, mountLabel) {
		dir := filepath.Join(bundle, fs.name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		made = append(made, fs.name)
		const flags = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
		if err := unix.Mount(fs.name, dir, "tmpfs", flags, fs.options); err != nil {
			return fmt.Errorf("mount tmpfs (%s) at %q: %w", fs.options, dir, err)
		}
	}
	for _, name := range etcFiles {
		if err := makeFile(filepath.Join(bundle, etcDir, name), content[name], c.User.root()); err != nil {
			return err
		}
	}
	if c.IPC != ModeNode {
		return nil
	}
	if _, err := os.Stat(devShm); err != nil {
		return fmt.Errorf("%s of the host: %w: %w", devShm, err, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// fileSystem is a tmpfs that is mounted in the bundle.
type fileSystem struct{ name, options string }

// fileSystems are those of a pod. mountLabel is the SELinux context of everything in them.
func (c Config) fileSystems(etcSize int, shmSize uint64, mountLabel string) []fileSystem {
	all := []fileSystem{{etcDir, fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", etcSize, etcInodes)}}
	if c.IPC != ModeNode {
		root := c.User.root()
		all = append(all, fileSystem{shmDir, fmt.Sprintf("mode=1777,size=%d,uid=%d,gid=%d", shmSize, root.UID, root.GID)})
	}
	for i := range all {
		all[i].options = label.FormatMountLabel(all[i].options, mountLabel)
	}
	return all
}

// etcSize is the size of etcDir in bytes: each file takes whole pages.
func etcSize(content map[string]string) int {
	size := etcRoom
	for _, text := range content {
		size += len(text) + os.Getpagesize()
	}
	return size
}

func makeFile(path, text string, owner idmap.Owner) error {
	const mode = 0o644 // whatever the umask
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Chmod(mode), f.Chown(owner.UID, owner.GID), f.Close())
}

// removeFiles undoes makeFiles.
func removeFiles(bundle string) error { return removeMounts(bundle, []string{shmDir, etcDir}) }

// removeMounts unmounts and removes directories of the bundle, which may be gone.
func removeMounts(bundle string, names []string) error {
	var errs []error
	for _, name := range names {
		dir := filepath.Join(bundle, name)
		// A container that still runs keeps its own mount.
		if err := mount.UnmountAll(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %q: %w", dir, err))
			continue
		}
		errs = append(errs, unixfile.Remove(dir))
	}
	return errors.Join(errs...)
}
