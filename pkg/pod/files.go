// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/unixfile"
)

// The pod's two directories in its bundle. Containers write to both, so each is a file system in memory with a size of
// its own: the bundle lies in /run, which has room for the whole node.
const (
	etcDir = "etc"
	shmDir = "shm"
	devShm = "/dev/shm" // in a container and on the host
	// Bounds on what containers write to etcDir, in addition to the initial content of the files.
	etcRoom   = 1 << 20
	etcInodes = 16 // the directory, the files, and what extended attributes count as
)

// etcFiles are the files in etcDir for /etc of the containers.
var etcFiles = []string{"hostname", "hosts", "resolv.conf"}

// etcContent returns the initial content of the files, by their names.
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
	var resolv string
	if dns := c.cri().DNS; dns != nil {
		resolv = resolvConf(dns)
	} else if resolv, err = readHost("/etc/resolv.conf", ""); err != nil {
		return nil, err
	}
	return map[string]string{"hostname": name + "\n", "hosts": hosts, "resolv.conf": resolv}, nil
}

// readHost returns the content of a file of the host, or missing if the host has none.
func readHost(path, missing string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return missing, nil
	}
	return string(data), err
}

// resolvConf returns the content of a resolv.conf(5).
func resolvConf(d *DNSConfig) string {
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
func makeFiles(bundle string, c Config, shmSize int64, mountLabel string) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, Remove(bundle))
		}
	}()
	content, err := c.etcContent()
	if err != nil {
		return err
	}
	for _, fs := range c.fileSystems(etcSize(content), shmSize, mountLabel) {
		dir := filepath.Join(bundle, fs.name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		const flags = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
		if err := unix.Mount(fs.name, dir, "tmpfs", flags, fs.options); err != nil {
			return fmt.Errorf("mount tmpfs (%s) at %q: %w", fs.options, dir, err)
		}
	}
	root := c.root()
	for name, text := range content {
		path := filepath.Join(bundle, etcDir, name)
		const mode = 0o644
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(path, mode), os.Chown(path, root.UID, root.GID)); err != nil { // umask
			return err
		}
	}
	return nil
}

// fileSystem is a tmpfs that is mounted in the bundle.
type fileSystem struct{ name, options string }

// fileSystems returns those of a pod. mountLabel is the SELinux context of everything in them.
func (c Config) fileSystems(etcSize int, shmSize int64, mountLabel string) []fileSystem {
	all := []fileSystem{{etcDir, fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", etcSize, etcInodes)}}
	if c.IPC != ModeNode {
		root := c.root()
		all = append(all, fileSystem{shmDir, fmt.Sprintf("mode=1777,size=%d,uid=%d,gid=%d", shmSize, root.UID, root.GID)})
	}
	for i := range all {
		all[i].options = label.FormatMountLabel(all[i].options, mountLabel)
	}
	return all
}

// etcSize returns the size of etcDir in bytes: each file takes whole pages.
func etcSize(content map[string]string) int {
	size := etcRoom
	for _, text := range content {
		size += len(text) + os.Getpagesize()
	}
	return size
}

// Remove removes what a pod has in its bundle, which may be gone. It is all that a pod leaves when its shim dies.
func Remove(bundle string) error {
	var errs []error
	for _, name := range []string{shmDir, etcDir} {
		dir := filepath.Join(bundle, name)
		// A container that still runs keeps its own mount.
		if err := mount.UnmountAll(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %q: %w", dir, err))
			continue
		}
		errs = append(errs, unixfile.Remove(dir))
	}
	var made []string // cgroups of a pod of 0.1.0, parents first
	if err := unixfile.ReadJSON(filepath.Join(bundle, "shim.cgroups.json"), &made); err == nil {
		for _, dir := range slices.Backward(made) {
			_ = unix.Rmdir(dir) // it stays if it is in use
		}
	}
	return errors.Join(errs...)
}

// ShmSizeAnnotation of a pod is the size of its /dev/shm, as a quantity of Kubernetes in whole numbers.
const ShmSizeAnnotation = "io.containerd.sandbox.v1/shm-size"

// defaultShmSize is that of CRI and of Docker.
const defaultShmSize = 64 << 20

// shmSize returns the size of the pod's /dev/shm. What a container writes there is charged to its cgroup, which may
// have no limit, so there is a maximum: by default half of the memory, which is the kernel's default for a tmpfs.
func (r Request) shmSize() (int64, error) {
	value, ok := r.Config.Annotations[ShmSizeAnnotation]
	if !ok {
		return defaultShmSize, nil
	}
	most := r.MaxShmSize
	if most == 0 {
		var info unix.Sysinfo_t
		_ = unix.Sysinfo(&info) // fails for no other reason than a bad address
		most = int64(info.Totalram * uint64(info.Unit) / 2)
	}
	most = max(most, defaultShmSize)
	size, ok := limit.ParseSize(value)
	if !ok || size < 1 || size > most { // a tmpfs of size 0 has no limit
		const want = "must be a size in bytes such as 67108864 or 64Mi, from 1 to"
		return 0, invalidf("annotation %s %q: %s %d (runtime option MaxShmSize)", ShmSizeAnnotation, value, want, most)
	}
	return size, nil
}

// checkSELinux refuses what would end the value of the context= mount option, even where SELinux is off.
func (c Config) checkSELinux() error {
	o := cmp.Or(c.SELinux, &SELinuxOptions{})
	for _, part := range []string{o.User, o.Role, o.Type, o.Level} {
		if strings.ContainsAny(part, "\"\x00") {
			return invalidf("selinux_options (user, role, type, level) %q: must not contain a quotation mark or NUL", part)
		}
	}
	return nil
}

// mountLabel returns the SELinux context of all files of the pod, "" where SELinux is off. initLabels is
// label.InitLabels, which returns the contexts of a process and of its files.
//
// A pod without a level gets s0: CRI takes no level from a shim that is the sandbox (plugins/sandbox,
// controllerLocal.Start), so each container has categories of its own, and what they share must have none.
func (c Config) mountLabel(initLabels func(options []string) (process, mount string, err error)) (string, error) {
	var options []string
	o := cmp.Or(c.SELinux, &SELinuxOptions{})
	for _, part := range [][2]string{{"user", o.User}, {"role", o.Role}, {"type", o.Type}, {"level", o.Level}} {
		if part[1] != "" {
			options = append(options, part[0]+":"+part[1])
		}
	}
	process, mount, err := initLabels(options)
	if err != nil {
		return "", fmt.Errorf("selinux_options %q: %w", options, err)
	}
	selinux.ReleaseLabel(process) // InitLabels reserves it in this process, which makes no other
	if mount == "" || o.Level != "" {
		return mount, nil
	}
	context, err := selinux.NewContext(mount)
	if err != nil {
		return "", fmt.Errorf("SELinux context %q: %w", mount, err)
	}
	context["level"] = "s0"
	return context.Get(), nil
}
