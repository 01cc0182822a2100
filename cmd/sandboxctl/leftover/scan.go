// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package leftover

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/measure"
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
	hidden bool // containerd has begun to remove it
	bare   bool // there are only directories in it
	ours   bool // its files say so
	alive  bool // the shim runs, or may
	peer   int  // process that listens on the socket of the shim; 0: not known
}

// bundleName returns the name of the container of a bundle.
func bundleName(dir string) Name {
	return Name{filepath.Base(filepath.Dir(dir)), strings.TrimPrefix(filepath.Base(dir), ".")}
}

// bundleOf returns the bundle to which a mount point belongs, a path of the machine; empty if it belongs to none.
func (s *Scan) bundleOf(mount string) string {
	for _, kind := range bundleDirs {
		rest, found := strings.CutPrefix(mount, filepath.Join(s.State, kind)+"/")
		if parts := strings.SplitN(rest, "/", 3); found && len(parts) == 3 {
			return filepath.Join(s.State, kind, parts[0], parts[1])
		}
	}
	return ""
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
			path := filepath.Join(dir, namespace.Name(), d.Name())
			n := bundleName(path)
			if d.IsDir() && identifiers.Validate(n.Namespace) == nil && identifiers.Validate(n.ID) == nil {
				found(n, path)
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

// readBundle reads what a bundle says of itself. containerd writes shim-binary-path for a shim that it starts, and not
// for a container in a pod of the Sandbox API, whose shim has the id of the pod.
func (s *Scan) readBundle(ctx context.Context, n Name, dir string) bundle {
	b := bundle{Name: n, dir: dir, hidden: strings.HasPrefix(filepath.Base(dir), ".")}
	if binary, err := machine.ReadText(filepath.Join(dir, "shim-binary-path")); err == nil {
		b.ours = filepath.Base(binary) == program
	} else {
		b.ours = slices.ContainsFunc([]string{"shim.json", "shim.pod.json", "shim.home"}, func(f string) bool {
			_, err := os.Lstat(filepath.Join(dir, f))
			return err == nil
		})
	}
	entries, err := os.ReadDir(dir)
	b.bare = err == nil && !slices.ContainsFunc(entries, func(d fs.DirEntry) bool { return !d.IsDir() })
	if socket, err := shimclient.Socket(dir); err == nil {
		b.alive, b.peer = listens(ctx, s.Root.Path(socket))
	} else {
		b.alive = !b.bare
	}
	b.alive = b.alive || slices.ContainsFunc(s.shims, func(sh shim) bool { return sh.Name == n })
	return b
}

// young is the age up to which a socket may be one on which a shim is about to listen.
const young = 10 * time.Second

// scanSockets lists those on which nobody listens.
func (s *Scan) scanSockets(ctx context.Context) (list []string) {
	entries, _ := os.ReadDir(s.Root.Path(s.Sockets)) // there are none without it
	for _, d := range entries {
		path := s.Root.Path(s.Sockets, d.Name())
		info, err := os.Lstat(path)
		if err != nil || info.Mode().Type() != os.ModeSocket || time.Since(info.ModTime()) < young {
			continue
		}
		if alive, _ := listens(ctx, path); !alive {
			list = append(list, path)
		}
	}
	return list
}

// listens reports whether somebody listens on a socket, or may, and which process.
func listens(ctx context.Context, socket string) (alive bool, pid int) {
	const patience = time.Second // of a socket whose backlog is full, on which somebody listens
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, pid, err := shimclient.DialOwn(ctx, socket)
	if err != nil { // one of another user may be listened on
		return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR), 0
	}
	_ = conn.Close() // nothing was written
	return true, pid
}

// state is a state directory of libcontainer's.
type state struct {
	Name
	dir  string
	pids []int // in its cgroups
}

// scanStates lists those in the default place of containers whose bundles were below this containerd's state directory.
func (s *Scan) scanStates() (list []state) {
	below(s.Root.Path(options.DefaultRoot), func(n Name, dir string) {
		var file struct { // a part of libcontainer's fields
			Groups map[string]string `json:"cgroup_paths"`
			Config struct {
				Labels []string `json:"labels"`
			} `json:"config"`
		}
		if unixfile.ReadJSON(filepath.Join(dir, "state.json"), &file) != nil { // it is just being made, or removed
			return
		}
		for _, label := range file.Config.Labels {
			bundle, found := strings.CutPrefix(label, "bundle=")
			if found && (machine.Within(s.State, bundle) || machine.Within(s.configured, bundle)) {
				list = append(list, state{n, dir, s.processes(file.Groups)})
				return
			}
		}
	})
	return list
}

// processes lists those in cgroups and below.
func (s *Scan) processes(groups map[string]string) (pids []int) {
	for _, group := range groups {
		if group == machine.CgroupRoot || !machine.Within(machine.CgroupRoot, group) {
			continue
		}
		_ = filepath.WalkDir(s.Root.Path(group), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() { // it is gone
				return nil
			}
			text, _ := machine.ReadText(filepath.Join(path, "cgroup.procs")) // of a threaded cgroup it fails
			for field := range strings.FieldsSeq(text) {
				pid, _ := strconv.Atoi(field) // the kernel writes numbers
				pids = append(pids, pid)
			}
			return nil
		})
	}
	slices.Sort(pids) // on v1 each hierarchy has them
	return slices.Compact(pids)
}

// shim is a process that runs the program of a shim, of any runtime.
type shim struct {
	Name
	pid     int
	ours    bool
	address string // of its containerd
}

// scanShims finds shims that see the mounts of containerd: others are of nodes in containers (kind), or programs in
// containers. The command line of a program in a container is not read: the kernel takes a lock for that, which the
// program can keep.
func (s *Scan) scanShims() (list []shim) {
	of := "self"
	if s.Daemon > 0 {
		of = strconv.Itoa(s.Daemon)
	}
	namespace := s.mountNamespace(of)
	for _, pid := range s.Root.Pids() {
		exe, _ := os.Readlink(s.Root.ProcFile(pid, "exe")) // it has none, or has ended
		name := strings.TrimSuffix(filepath.Base(exe), " (deleted)")
		if !strings.HasPrefix(name, "containerd-shim") || s.mountNamespace(strconv.Itoa(pid)) != namespace {
			continue
		}
		text, _ := os.ReadFile(s.Root.ProcFile(pid, "cmdline")) // as above
		args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		n := Name{machine.FlagValue(args, "namespace"), machine.FlagValue(args, "id")}
		if identifiers.Validate(n.Namespace) != nil || identifiers.Validate(n.ID) != nil || slices.Contains(args, "delete") {
			continue // the delete command ends by itself, and removes what it was called for
		}
		list = append(list, shim{n, pid, name == program, machine.FlagValue(args, "address")})
	}
	return list
}

// mountNamespace returns that of a process; empty: it cannot be seen.
func (s *Scan) mountNamespace(pid string) string {
	link, _ := os.Readlink(s.Root.Path("proc", pid, "ns/mnt"))
	return link
}

// children counts the processes that a process has started or adopted, as far as they can be seen.
func (s *Scan) children(pid int) (n int) {
	threads, _ := filepath.Glob(s.Root.ProcFile(pid, "task/*/children")) // the pattern is right
	for _, file := range threads {
		text, _ := machine.ReadText(file) // the thread may have ended
		n += len(strings.Fields(text))
	}
	return n
}

// hasShim reports whether a process was started by a shim that runs.
func (s *Scan) hasShim(pid int) bool {
	for seen := map[int]bool{}; pid > 1 && !seen[pid]; { // there is a loop if pids are used again
		seen[pid] = true
		if slices.ContainsFunc(s.shims, func(sh shim) bool { return sh.pid == pid }) {
			return true
		}
		p, _ := measure.ReadProcess(s.Root, pid) // 0 of one that has ended
		pid = p.Parent
	}
	return false
}
