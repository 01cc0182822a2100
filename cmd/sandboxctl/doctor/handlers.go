// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/pkg/options"
)

const (
	runtimeName = "io.containerd.sandbox.v1"
	program     = "containerd-shim-sandbox-v1"
)

// handler is a runtime of CRI in containerd's configuration.
type handler struct {
	name, runtimeType, path string
	options                 bool
}

func (h handler) ours() bool {
	return h.runtimeType == runtimeName || filepath.Base(h.runtimeType) == program
}

// handlers lists those of CRI. Its plugin has another name in each version of the configuration.
func (c config) handlers() (list []handler) {
	plugins := c.table("plugins")
	for _, plugin := range slices.Sorted(maps.Keys(plugins)) {
		runtimes := c.table("plugins", plugin, "containerd", "runtimes")
		for _, name := range slices.Sorted(maps.Keys(runtimes)) {
			at := []string{"plugins", plugin, "containerd", "runtimes", name}
			field := func(key string) string { return c.text(append(slices.Clone(at), key)...) }
			list = append(list, handler{
				name, field("runtime_type"), field("runtime_path"), len(c.table(append(slices.Clone(at), "options")...)) > 0,
			})
		}
	}
	return list
}

func (e *Examination) handlers(context.Context) []Finding {
	if errors.Is(e.configErr, errOtherMounts) {
		return []Finding{none("the configuration cannot be read: %v", e.configErr)}
	}
	if e.configErr != nil {
		return []Finding{bad("the configuration cannot be read: %v", e.configErr).
			fix("run containerd --config %s config dump, which says where; it must be in PATH", e.config.file)}
	}
	if e.config.disabled("cri") {
		return []Finding{none("CRI is disabled in %s: ctr, nerdctl and Docker need no handler", e.config.file)}
	}
	all := e.config.handlers()
	var findings []Finding
	var ours, others []string
	for _, h := range all {
		if !h.ours() {
			others = append(others, fmt.Sprintf("%s (%s)", h.name, h.runtimeType))
			continue
		}
		ours = append(ours, h.name)
		if h.options && e.versionErr == nil && releaseOf(e.version) >= 2_00 {
			findings = append(findings, warn("the handler %s has a table of options: containerd %s then refuses pods with "+
				"users of their own", h.name, e.version).fix("move the options to %s", options.DefaultFile))
		}
	}
	if ours == nil {
		return append(findings, bad("no handler in %s has runtime_type = %q; there are: %s", e.config.file, runtimeName,
			strings.Join(others, ", ")))
	}
	if e.changedSinceStart() {
		findings = append(findings, warn("%s was changed after containerd had read it", e.config.file).
			fix("systemctl restart containerd"))
	}
	return orOK(findings, strings.Join(ours, ", "))
}

// changedSinceStart reports whether the configuration was changed after the process of containerd began.
func (e *Examination) changedSinceStart() bool {
	info, err := os.Stat(e.Root.Path(e.config.file))
	daemon, statErr := measure.ReadProcess(e.Root, e.daemon.Pid)
	text, _ := machine.ReadText(e.Root.Path("proc/stat")) // without it there is no number
	boot, bootErr := strconv.ParseInt(field(text, "btime"), 10, 64)
	if errors.Join(err, statErr, bootErr) != nil || e.daemon.Pid == 0 {
		return false
	}
	// btime is in whole seconds, and the clock may have been set by some.
	const doubt = 2 * time.Second
	return info.ModTime().After(time.Unix(boot, 0).Add(daemon.Starts + doubt))
}

// lookUp finds the binary as containerd does (core/runtime/v2/shim_manager.go, resolveRuntimePath): in its PATH, before
// which its plugin "opt" puts a directory, then next to its own binary.
func (e *Examination) lookUp() (string, error) {
	var dirs []string
	if opt := e.config.text("plugins", "io.containerd.internal.v1.opt", "path"); opt != "" && !e.config.disabled("opt") {
		dirs = append(dirs, filepath.Join(opt, "bin"))
	}
	list := e.daemon.Path
	if e.daemon.Pid == 0 {
		list = os.Getenv("PATH")
	}
	dirs = append(dirs, filepath.SplitList(list)...)
	if exe, err := os.Readlink(e.daemon.Exe); err == nil {
		dirs = append(dirs, filepath.Dir(exe))
	}
	found := ""
	for _, dir := range dirs {
		file := filepath.Join(dir, program)
		info, err := os.Stat(e.Root.Path(file))
		switch {
		case err != nil || info.IsDir():
		case info.Mode().Perm()&0o111 != 0:
			return file, nil
		default:
			found = file
		}
	}
	if found != "" {
		return found, nil
	}
	return "", fmt.Errorf("no %s in the directories in which containerd looks: %s", program, strings.Join(dirs, ", "))
}

func (e *Examination) shimBinary(ctx context.Context) []Finding {
	var findings []Finding
	paths, err := e.shimBinaries()
	if len(paths) == 0 {
		findings = append(findings, bad("%v", err))
	}
	for _, path := range paths {
		findings = append(findings, e.oneBinary(ctx, path))
	}
	return findings
}

// shimBinaries returns the paths of the shims that containerd would start. The error is that of lookUp.
func (e *Examination) shimBinaries() ([]string, error) {
	paths := map[string]bool{}
	for _, h := range e.config.handlers() {
		switch {
		case !h.ours():
		case h.path != "":
			paths[h.path] = true
		case filepath.IsAbs(h.runtimeType):
			paths[h.runtimeType] = true
		}
	}
	path, err := e.lookUp()
	if err == nil {
		paths[path] = true
	}
	return slices.Sorted(maps.Keys(paths)), err
}

func (e *Examination) oneBinary(ctx context.Context, path string) Finding {
	info, err := os.Stat(e.Root.Path(path))
	if err != nil {
		return bad("%s, which containerd's configuration names: %v", path, errors.Unwrap(err))
	}
	if info.Mode().Perm()&0o111 == 0 {
		return bad("%s is not executable", path).fix("chmod 0755 %s", path)
	}
	binary, err := runnable(e.Root.Path(path))
	if err != nil {
		return bad("%s is not run: who can write it, or a directory to it, is root: %v", path, err).
			fix("chown root: and chmod 0755 what can be written")
	}
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	version, refusal, err := askInfo(ctx, binary)
	switch {
	case err != nil:
		return bad("%s does not run: %v", path, err)
	case version == "":
		return bad("%s is another program: it does not say its version to -info", path)
	case refusal != "":
		return bad("%s refuses containers without options of their own: %s", path, refusal).
			fix("fix or remove %s: without the file containers have no default options", options.DefaultFile)
	case e.Version != "" && e.Version != "unknown" && version != e.Version:
		return warn("%s is version %s, and this program is %s", path, version, e.Version)
	}
	return ok("%s, version %s", path, version)
}

func (e *Examination) shimUpgrade(context.Context) []Finding {
	const most = 5 // of hundreds
	names := e.outdated
	if len(names) == 0 {
		return []Finding{ok("all that run")}
	} else if n := len(names) - most; n > 0 {
		names = append(names[:most:most], fmt.Sprintf("and %d more", n))
	}
	return []Finding{warn("another program is installed than these shims run: %s", strings.Join(names, "; "))}
}

// field returns the word after a name in a text of lines.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			return f[1]
		}
	}
	return ""
}

// askInfo asks a shim for its version, and why it refuses the default configuration file; "" if it does not.
func askInfo(ctx context.Context, binary string) (version, refusal string, err error) {
	cmd := exec.CommandContext(ctx, binary, "-info")
	cmd.WaitDelay = time.Second // what it has started may keep its output open
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	answer, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var info types.RuntimeInfo
	if proto.Unmarshal(answer, &info) != nil { // it is no shim
		return "", "", nil
	}
	return info.GetVersion().GetVersion(), info.GetAnnotations()[runtimeName+"/config.error"], nil
}

// writableByOthers are the bits of a mode that let others than the owner write.
const writableByOthers = 0o022

// runnable returns the path of a program without symbolic links, if nobody except root and the user of this program can
// change what it does: both own it and the directories to it, and nobody else can replace anything there.
func runnable(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	for at := resolved; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", err
		}
		if err := unchangeable(at, info); err != nil {
			return "", err
		}
		if at == filepath.Dir(at) {
			return resolved, nil
		}
	}
}

func unchangeable(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s does not belong to root", path)
	}
	// In a directory with the sticky bit others cannot replace what is root's.
	sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	if info.Mode().Perm()&writableByOthers != 0 && !sticky {
		return fmt.Errorf("%s can be written by others than its owner (%04o)", path, info.Mode().Perm())
	}
	return nil
}
