// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	shimclient "sandbox.internal/shim/cmd/sandboxctl/shim"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/unixfile"
)

const program = "containerd-shim-sandbox-v1"

// Directories of bundles below containerd's state directory: of containers, and of pods of the Sandbox API.
var bundleDirs = []string{"io.containerd.runtime.v2.task", "io.containerd.sandbox.controller.v1.shim"}

// bundle is a directory that containerd made for a container or a pod.
type bundle struct {
	Name
	dir    string
	hidden bool   // containerd has begun to remove it
	bare   bool   // there are only directories in it
	ours   bool   // its files say so
	binary string // of its shim; empty: not known
	socket string // of its shim; empty: not known
	alive  bool   // the shim runs, or may
	parts  []part // the containers of its shim, itself among them
	doubt  string // why there may be others
}

// part is a container of a shim.
type part struct {
	Name
	bundle string // which may be gone
	state  string // state directory, likewise
}

// below calls found for the directories NAMESPACE/ID in dir with valid names.
func below(dir string, found func(n Name, dir string)) {
	namespaces, _ := os.ReadDir(dir) // none without it
	for _, namespace := range namespaces {
		if !namespace.IsDir() { // such as a symbolic link
			continue
		}
		list, _ := os.ReadDir(filepath.Join(dir, namespace.Name())) // as above
		for _, d := range list {
			n := Name{namespace.Name(), strings.TrimPrefix(d.Name(), ".")}
			if d.IsDir() && identifiers.Validate(n.Namespace) == nil && identifiers.Validate(n.ID) == nil {
				found(n, filepath.Join(dir, namespace.Name(), d.Name()))
			}
		}
	}
}

func (s *Scan) scanBundles(ctx context.Context) (list []bundle) {
	for _, kind := range bundleDirs {
		below(s.Root.Path(s.State, kind), func(n Name, dir string) { list = append(list, s.readBundle(ctx, n, dir)) })
	}
	return list
}

// readBundle reads what a bundle says of itself. containerd writes shim-binary-path and address for a shim that it
// starts, and only bootstrap.json for a container in a pod of the Sandbox API, whose shim has the id of the pod.
func (s *Scan) readBundle(ctx context.Context, n Name, dir string) bundle {
	b := bundle{Name: n, dir: dir, hidden: strings.HasPrefix(filepath.Base(dir), ".")}
	var err error
	if b.binary, err = machine.ReadText(filepath.Join(dir, "shim-binary-path")); err == nil {
		b.ours = filepath.Base(b.binary) == program
	} else {
		files := []string{stateFile, indexFile, indexLink, "shim.deleted"}
		b.ours = slices.ContainsFunc(files, func(f string) bool {
			_, err := os.Lstat(filepath.Join(dir, f))
			return err == nil
		})
	}
	entries, err := os.ReadDir(dir)
	b.bare = err == nil && !slices.ContainsFunc(entries, func(d fs.DirEntry) bool { return !d.IsDir() })
	socket, err := shimclient.Socket(dir)
	if err == nil {
		b.socket = socket
	}
	switch {
	case slices.ContainsFunc(s.shims, func(sh shim) bool { return sh.sure && sh.Name == n }):
		b.alive = true
	case b.socket != "":
		b.alive = listens(ctx, s.Root.Path(b.socket))
	default:
		b.alive = !b.bare
	}
	b.parts, err = s.partsOf(b)
	if err != nil {
		b.doubt = fmt.Sprintf("which containers its shim had cannot be read: %v", err)
	}
	return b
}

// Files of pkg/cleanup in bundles.
const (
	stateFile = "shim.json"
	indexFile = "shim.pod.json"
	indexLink = "shim.home"
)

// partsOf reads which containers the shim of a bundle had. With an error there may be more.
func (s *Scan) partsOf(b bundle) (parts []part, err error) {
	add := func(n Name, bundle, root string) {
		var file struct{ Root string } // where the index names another, this one counts, as in pkg/cleanup
		if err := unixfile.ReadJSON(filepath.Join(bundle, stateFile), &file); err == nil && file.Root != "" {
			root = file.Root
		}
		if root == "" {
			root = filepath.Join(options.DefaultRoot, n.Namespace)
		}
		parts = append(parts, part{n, bundle, s.Root.Path(root, n.ID)})
	}
	add(b.Name, b.dir, "")
	at := b.dir
	if target, err := os.Readlink(filepath.Join(b.dir, indexLink)); err == nil && filepath.IsAbs(target) {
		at = target
	}
	if !s.isBundle(at) {
		return parts, fmt.Errorf("%s leads to %s, which is no bundle", indexLink, at)
	}
	var index struct {
		ID      string
		Members map[string]struct{ Bundle, Root string }
	}
	if err := unixfile.ReadJSON(filepath.Join(at, indexFile), &index); errors.Is(err, fs.ErrNotExist) {
		return parts, nil
	} else if err != nil {
		return parts, err
	}
	if index.ID != "" && at != b.dir {
		add(Name{b.Namespace, index.ID}, at, "")
	}
	for id, m := range index.Members {
		if err := identifiers.Validate(id); err != nil {
			return parts, fmt.Errorf("%s: %w", indexFile, err)
		}
		if at := s.Root.Path(m.Bundle); at != b.dir {
			add(Name{b.Namespace, id}, at, m.Root)
		}
	}
	return parts, nil
}

// isBundle reports whether a path is one at which this containerd has bundles.
func (s *Scan) isBundle(dir string) bool {
	kind := filepath.Dir(filepath.Dir(dir))
	return slices.ContainsFunc(bundleDirs, func(name string) bool { return kind == s.Root.Path(s.State, name) })
}

// young is the age up to which a socket may be one on which a shim is about to listen.
const young = 10 * time.Second

// scanSockets lists those on which nobody listens.
func (s *Scan) scanSockets(ctx context.Context) (list []string) {
	entries, _ := os.ReadDir(s.Root.Path(s.Sockets)) // there are none without it
	for _, d := range entries {
		path := s.Root.Path(s.Sockets, d.Name())
		info, err := os.Lstat(path)
		if err == nil && info.Mode().Type() == os.ModeSocket && time.Since(info.ModTime()) >= young && !listens(ctx, path) {
			list = append(list, path)
		}
	}
	return list
}

// listens reports whether somebody listens on a socket, or may.
func listens(ctx context.Context, socket string) bool {
	const patience = time.Second // of a socket whose backlog is full, on which somebody listens
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err == nil {
		_ = conn.Close() // nothing was written
		return true
	}
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR)
}

// mountNamespace returns that of a process; empty: it cannot be seen, and is not the same as any.
func (s *Scan) mountNamespace(pid string) string {
	link, _ := os.Readlink(s.Root.Path("proc", pid, "ns/mnt"))
	return link
}

// children counts the processes that a process has started or adopted. It returns an error if that cannot be read for
// one of its threads.
func (s *Scan) children(pid int) (n int, err error) {
	threads, err := os.ReadDir(s.Root.ProcFile(pid, "task"))
	if err != nil {
		return 0, err
	}
	for _, t := range threads {
		text, err := machine.ReadText(s.Root.ProcFile(pid, "task/"+t.Name()+"/children"))
		if err != nil {
			return 0, err
		}
		n += len(strings.Fields(text))
	}
	return n, nil
}

// listening returns the paths of the sockets on which a process listens. There may be others among them: somebody's
// abstract socket may have a line in its name like that of another socket, which the kernel prints as it is.
func (s *Scan) listening(pid int) (paths []string, err error) {
	threads, err := os.ReadDir(s.Root.ProcFile(pid, "task"))
	if err != nil {
		return nil, err
	}
	byInode, looked := map[string][]string{}, false
	for _, t := range threads { // the first thread of a pod's shim is in the pod's network namespace
		text, readErr := machine.ReadText(s.Root.ProcFile(pid, "task/"+t.Name()+"/net/unix"))
		if readErr != nil {
			err = readErr // or it has ended
			continue
		}
		looked = true
		for line := range strings.Lines(text) { // Num RefCount Protocol Flags Type St Inode Path
			if f := strings.Fields(line); len(f) == 8 {
				socket := "socket:[" + f[6] + "]"
				byInode[socket] = append(byInode[socket], f[7])
			}
		}
	}
	if !looked {
		return nil, err
	}
	list, err := os.ReadDir(s.Root.ProcFile(pid, "fd"))
	if err != nil {
		return nil, err
	}
	for _, fd := range list {
		target, _ := os.Readlink(s.Root.ProcFile(pid, "fd/"+fd.Name())) // it may be closed
		paths = append(paths, byInode[target]...)
	}
	return paths, nil
}
