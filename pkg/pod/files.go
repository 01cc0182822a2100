// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// What a pod has in its bundle.
const (
	hostnameFile = "hostname"
	hostsFile    = "hosts"
	resolvFile   = "resolv.conf"
	shmDir       = "shm"
)

// etcFiles are those for /etc of the containers.
var etcFiles = []string{hostnameFile, hostsFile, resolvFile}

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

// makeFiles writes the files and mounts /dev/shm. They belong to the pod's root, whose containers may change them. When it
// fails, what it made is removed, and what was there before is as it was.
func makeFiles(bundle string, c Config) (err error) {
	texts, err := c.texts()
	if err != nil {
		return err
	}
	var made []string
	defer func() {
		if err != nil {
			err = errors.Join(err, removeNamed(bundle, made))
		}
	}()
	uid, gid := c.User.root()
	for _, name := range etcFiles {
		if err := makeFile(filepath.Join(bundle, name), texts[name], uid, gid); err != nil {
			return err
		}
		made = append(made, name)
	}
	if c.IPC == ModeNode {
		if _, err := os.Stat(devShm); err != nil {
			return fmt.Errorf("%s of the host: %w: %w", devShm, err, errdefs.ErrFailedPrecondition)
		}
		return nil
	}
	size, err := shmSize(c.Annotations)
	if err != nil {
		return err
	}
	dir := filepath.Join(bundle, shmDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	made = append(made, shmDir)
	data := fmt.Sprintf("mode=1777,size=%d,uid=%d,gid=%d", size, uid, gid)
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("mount tmpfs (%s) at %q: %w", data, dir, err)
	}
	return nil
}

func makeFile(path, text string, uid, gid int) error {
	const mode = 0o644 // whatever the umask
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(mode), f.Chown(uid, gid), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// removeFiles undoes makeFiles.
func removeFiles(bundle string) error {
	return removeNamed(bundle, append([]string{shmDir}, etcFiles...))
}

// removeNamed removes those of what makeFiles makes, which may be gone.
func removeNamed(bundle string, names []string) error {
	dir := filepath.Join(bundle, shmDir)
	var errs []error
	for slices.Contains(names, shmDir) {
		// Detached: a container that has not gone yet keeps its own mount. Until there is none left.
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue
		}
		if err != unix.EINVAL && err != unix.ENOENT { // no mount, or no directory
			errs = append(errs, fmt.Errorf("unmount %q: %w", dir, err))
		}
		break
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(bundle, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
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
