// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"
)

// What a pod has in its bundle: two file systems in memory. Containers write to both, and the bundle is in one with room for the
// whole node: /run.
const (
	etcDir = "etc"
	shmDir = "shm"
)

// etcFiles are those for /etc of the containers, in etcDir.
var etcFiles = []string{hostnameFile, hostsFile, resolvFile}

const (
	hostnameFile = "hostname"
	hostsFile    = "hosts"
	resolvFile   = "resolv.conf"
)

// Room for what containers write to these files, beside what they begin with.
const (
	etcRoom   = 1 << 20
	etcInodes = 16 // the directory, the files, and what extended attributes count as
)

// Where /dev/shm is, in a container and on the host.
const devShm = "/dev/shm"

// text is what the files begin with.
func (c Config) texts() (map[string]string, error) {
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
	resolv := c.DNS.text()
	if c.DNS == nil {
		if resolv, err = readHost("/etc/resolv.conf", ""); err != nil {
			return nil, err
		}
	}
	return map[string]string{hostnameFile: name + "\n", hostsFile: hosts, resolvFile: resolv}, nil
}

// readHost reads a file of the host, which can go without.
func readHost(path, without string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return without, nil
	}
	return string(data), err
}

// text is the resolv.conf(5), empty for nil.
func (d *DNSConfig) text() string {
	var b strings.Builder
	if d == nil {
		return ""
	}
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

// makeFiles writes the files and mounts /dev/shm, of that size. They belong to the pod's root, whose containers may change
// them, and have the SELinux context mountLabel if it is not empty. When it fails, what it made is removed, and what was there
// before is as it was.
func makeFiles(bundle string, c Config, shmSize uint64, mountLabel string) (err error) {
	texts, err := c.texts()
	if err != nil {
		return err
	}
	var made []string
	defer func() {
		if err != nil {
			err = errors.Join(err, removeMounts(bundle, made))
		}
	}()
	uid, gid := c.User.root()
	for _, fs := range c.fileSystems(etcSize(texts), shmSize, mountLabel) {
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
		if err := makeFile(filepath.Join(bundle, etcDir, name), texts[name], uid, gid); err != nil {
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

// fileSystem is one that is mounted in the bundle.
type fileSystem struct{ name, options string }

// fileSystems are those of a pod with so much room, each with one SELinux context for all that is in it.
func (c Config) fileSystems(etcSize int, shmSize uint64, mountLabel string) []fileSystem {
	all := []fileSystem{{etcDir, fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", etcSize, etcInodes)}}
	if c.IPC != ModeNode {
		uid, gid := c.User.root()
		all = append(all, fileSystem{shmDir, fmt.Sprintf("mode=1777,size=%d,uid=%d,gid=%d", shmSize, uid, gid)})
	}
	for i := range all {
		all[i].options = label.FormatMountLabel(all[i].options, mountLabel)
	}
	return all
}

// etcSize is that of the file system with these files: each takes whole pages.
func etcSize(texts map[string]string) int {
	size := etcRoom
	for _, text := range texts {
		size += len(text) + os.Getpagesize()
	}
	return size
}

func makeFile(path, text string, uid, gid int) error {
	const mode = 0o644 // whatever the umask
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Chmod(mode), f.Chown(uid, gid), f.Close())
}

// removeFiles undoes makeFiles.
func removeFiles(bundle string) error { return removeMounts(bundle, []string{shmDir, etcDir}) }

// removeMounts removes those of what makeFiles mounts, which may be gone.
func removeMounts(bundle string, names []string) error {
	var errs []error
	for _, name := range names {
		dir := filepath.Join(bundle, name)
		if err := detach(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// detach unmounts all that is mounted at dir. A container that has not gone yet keeps its own mount.
func detach(dir string) error {
	for {
		switch err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err {
		case nil:
		case unix.EINVAL, unix.ENOENT: // no mount, or no directory
			return nil
		default:
			return fmt.Errorf("unmount %q: %w", dir, err)
		}
	}
}

// root is the host's id of the user and group 0 of u; of the host's own where u is nil, or has none.
func (u *UserNamespace) root() (uid, gid int) {
	if u == nil {
		return 0, 0
	}
	return hostID(u.UIDs, 0), hostID(u.GIDs, 0)
}

// hostID is the host's id of one in the namespace; 0 if it has none.
func hostID(list []specs.LinuxIDMapping, id uint32) int {
	for _, m := range list {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return int(m.HostID) + int(id-m.ContainerID)
		}
	}
	return 0
}
