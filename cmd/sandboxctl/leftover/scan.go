// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"context"
	"errors"
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
	dir     string
	hidden  bool   // containerd has begun to remove it
	bare    bool   // there are only directories in it
	ours    bool   // its files say so
	socket  string // of its shim; empty: not known
	alive   bool   // the shim lives, or it may
	members []Name // of its pod, if the bundle says it
}

// below lists the directories NAMESPACE/ID in one, with valid names.
func below(dir string, found func(n Name, dir string)) {
	namespaces, _ := os.ReadDir(dir) // none without it
	for _, namespace := range namespaces {
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
// starts, and bootstrap.json alone for a container in a pod of the Sandbox API, whose shim has the id of the pod.
func (s *Scan) readBundle(ctx context.Context, n Name, dir string) bundle {
	b := bundle{Name: n, dir: dir, hidden: strings.HasPrefix(filepath.Base(dir), ".")}
	binary, err := machine.ReadText(filepath.Join(dir, "shim-binary-path"))
	if err == nil {
		b.ours = filepath.Base(binary) == program
	} else {
		files := []string{"shim.json", "shim.pod.json", "shim.home", "shim.deleted"}
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
	case slices.ContainsFunc(s.shims, func(sh shim) bool { return sh.Name == n }):
		b.alive = true
	case b.socket != "":
		b.alive = listens(ctx, s.Root.Path(b.socket))
	default:
		b.alive = !b.bare
	}
	b.members = podMembers(b)
	return b
}

// podMembers are the containers that the shim of a bundle had.
func podMembers(b bundle) []Name {
	at := b.dir
	if target, err := os.Readlink(filepath.Join(b.dir, "shim.home")); err == nil && filepath.IsAbs(target) {
		at = target
	}
	var index struct { // pkg/cleanup writes it
		ID      string
		Members map[string]struct{}
	}
	if unixfile.ReadJSON(filepath.Join(at, "shim.pod.json"), &index) != nil {
		return nil
	}
	members := []Name{{b.Namespace, index.ID}}
	for id := range index.Members {
		members = append(members, Name{b.Namespace, id})
	}
	return members
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

// shim is a process of a shim, of any runtime.
type shim struct {
	Name
	pid     int
	ours    bool
	here    bool   // it sees the mounts that containerd does: others are of nodes in containers (kind)
	address string // of its containerd
}

func (s *Scan) scanShims() (list []shim) {
	namespace := func(pid string) string {
		link, _ := os.Readlink(s.Root.Path("proc", pid, "ns/mnt")) // empty: it is not the same as any
		return link
	}
	of := "self"
	if s.Daemon > 0 {
		of = machine.PidText(s.Daemon)
	}
	mounts := namespace(of)
	for _, p := range s.Root.Processes() {
		base := filepath.Base(p.Args[0])
		if !strings.HasPrefix(base, "containerd-shim") || len(p.Args) < 2 {
			continue
		}
		if last := p.Args[len(p.Args)-1]; last == "delete" {
			continue // it ends by itself, and removes what it was called for
		}
		n := Name{machine.FlagValue(p.Args, "namespace"), machine.FlagValue(p.Args, "id")}
		if identifiers.Validate(n.Namespace) != nil || identifiers.Validate(n.ID) != nil {
			continue
		}
		here := mounts != "" && namespace(machine.PidText(p.Pid)) == mounts
		list = append(list, shim{n, p.Pid, base == program, here, machine.FlagValue(p.Args, "address")})
	}
	return list
}

// children counts the processes that a process has started or adopted. It is an error if one of its threads does not
// tell.
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

// listening are the paths of the sockets on which a process listens.
func (s *Scan) listening(pid int) (paths []string, err error) {
	text, err := machine.ReadText(s.Root.Path("proc/net/unix"))
	if err != nil {
		return nil, err
	}
	byInode := map[string]string{}
	for line := range strings.Lines(text) { // Num RefCount Protocol Flags Type St Inode Path
		if f := strings.Fields(line); len(f) == 8 {
			byInode["socket:["+f[6]+"]"] = f[7]
		}
	}
	list, err := os.ReadDir(s.Root.ProcFile(pid, "fd"))
	if err != nil {
		return nil, err
	}
	for _, fd := range list {
		target, _ := os.Readlink(s.Root.ProcFile(pid, "fd/"+fd.Name())) // it may be closed
		if path := byInode[target]; path != "" {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// state is a state directory of libcontainer's.
type state struct {
	Name
	dir   string
	procs int // in its cgroups
}

// scanStates lists those of containers whose bundles were below this state directory.
func (s *Scan) scanStates() (list []state) {
	below(s.Root.Path(options.DefaultRoot), func(n Name, dir string) {
		var file struct {
			CgroupPaths map[string]string `json:"cgroup_paths"`
			Config      struct {
				Labels []string `json:"labels"`
			} `json:"config"`
		}
		if unixfile.ReadJSON(filepath.Join(dir, "state.json"), &file) != nil {
			return // it is just being made, or removed
		}
		ours := false
		for _, label := range file.Config.Labels {
			b, found := strings.CutPrefix(label, "bundle=")
			ours = ours || found && (machine.Within(s.State, b) || machine.Within(s.configured, b))
		}
		if ours {
			list = append(list, state{n, dir, s.processes(file.CgroupPaths)})
		}
	})
	return list
}

// processes counts those in cgroups and below.
func (s *Scan) processes(paths map[string]string) int {
	pids := map[string]bool{} // on v1 each hierarchy has them
	for _, top := range paths {
		if !machine.Within(machine.CgroupRoot, top) {
			continue
		}
		_ = filepath.WalkDir(s.Root.Path(top), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				text, _ := machine.ReadText(filepath.Join(path, "cgroup.procs")) // it may be gone
				for pid := range strings.FieldsSeq(text) {
					pids[pid] = true
				}
			}
			return nil // what is gone has no processes
		})
	}
	return len(pids)
}
