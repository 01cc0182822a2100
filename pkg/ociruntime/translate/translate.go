// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package translate makes libcontainer's configuration of a container, and of its processes, from that of the OCI
// runtime specification (config.md, config-linux.md).
package translate

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/moby/sys/userns"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// specconvLock guards specconv.AllowedDevices and lastSeccomp.
var specconvLock sync.Mutex

// lastSeccomp is the profile of the last container. Nobody changes a profile, which has tens of kilobytes, and most
// containers have the same one.
var lastSeccomp *configs.Seccomp // +checklocksignore: specconvLock guards it

// Container translates the configuration of a container. The reaper of children must be suspended: to read the mappings
// of a user namespace that the container joins, libcontainer starts a child and waits for it.
func Container(c process.Config) (*configs.Config, error) {
	specconvLock.Lock()
	defer specconvLock.Unlock()
	defer resetDevices()
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName:       c.ID,
		UseSystemdCgroup: c.SystemdCgroup,
		NoPivotRoot:      c.NoPivotRoot,
		NoNewKeyring:     c.NoNewKeyring,
		Spec:             inBundle(c),
		RootlessEUID:     os.Geteuid() != 0,
		RootlessCgroups:  rootlessCgroups(c.SystemdCgroup),
	})
	if err != nil {
		return nil, err
	}
	if reflect.DeepEqual(config.Seccomp, lastSeccomp) {
		config.Seccomp = lastSeccomp
	} else {
		lastSeccomp = config.Seccomp
	}
	for i, d := range config.Devices {
		own := *d
		config.Devices[i] = &own
	}
	// specconv takes the working directory as the bundle, but a shim serves several containers.
	for i, label := range config.Labels {
		if strings.HasPrefix(label, "bundle=") {
			config.Labels[i] = "bundle=" + c.Bundle
		}
	}
	return config, keepCgroup2Options(config)
}

// Cgroup names the cgroup of a container, without its limits. Unlike Container it does not need the processes whose
// namespaces the container joins.
func Cgroup(c process.Config) (*cgroups.Cgroup, error) {
	spec := &specs.Spec{Linux: &specs.Linux{}}
	if c.Spec.Linux != nil {
		spec.Linux.CgroupsPath = c.Spec.Linux.CgroupsPath
	}
	return specconv.CreateCgroupConfig(&specconv.CreateOpts{
		CgroupName: c.ID, UseSystemdCgroup: c.SystemdCgroup, Spec: spec, RootlessCgroups: rootlessCgroups(c.SystemdCgroup),
	}, nil)
}

// rootlessCgroups is as in runc (rootless_linux.go, shouldUseRootlessCgroupManager): a container without cgroupsPath
// may have none. With systemd it would mean that of a user, which a root in a user namespace does not have.
func rootlessCgroups(systemd bool) bool {
	return os.Geteuid() != 0 || !systemd && userns.RunningInUserNS()
}

// keepCgroup2Options gives mounts of cgroup v2 the machine's options, such as nsdelegate: one from outside a cgroup
// namespace would clear them for the whole hierarchy (kernel/cgroup/cgroup.c, apply_cgroup_root_flags).
func keepCgroup2Options(config *configs.Config) error {
	isCgroup2 := func(m *configs.Mount) bool {
		return m.Device == "cgroup2" || m.Device == "cgroup" && cgroups.IsCgroup2UnifiedMode()
	}
	if config.Namespaces.IsPrivate(configs.NEWCGROUP) || !slices.ContainsFunc(config.Mounts, isCgroup2) {
		return nil
	}
	options, err := cgroup2Options()
	if err != nil {
		return fmt.Errorf("options of the machine's cgroup v2: %w", err)
	}
	for _, m := range config.Mounts {
		if isCgroup2(m) {
			m.Data = strings.Trim(m.Data+","+options, ",")
		}
	}
	return nil
}

// cgroup2Options returns those with which cgroup v2 is mounted.
func cgroup2Options() (string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil || len(mounts) == 0 {
		return "", err
	}
	// Since Linux 4.19 it has the options that there are, of which mountinfo shows others too.
	known, err := os.ReadFile("/sys/kernel/cgroup/features")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	options := strings.Split(mounts[0].VFSOptions, ",") // all mounts have the same
	return strings.Join(slices.DeleteFunc(options, func(o string) bool {
		return !slices.Contains(strings.Fields(string(known)), o)
	}), ","), nil
}

// resetDevices gives the devices back to root. specconv gives all containers the same ones, and those of one with a
// user namespace another owner, even if it then refuses it (specconv/spec_linux.go, CreateLibcontainerConfig).
func resetDevices() {
	for _, d := range specconv.AllowedDevices {
		d.Uid, d.Gid = 0, 0
	}
}

// inBundle returns c.Spec with absolute paths instead of those relative to the bundle: specconv would resolve them
// against the working directory.
func inBundle(c process.Config) *specs.Spec {
	spec := *c.Spec
	root := *spec.Root
	root.Path = c.Rootfs
	spec.Root = &root
	spec.Mounts = slices.Clone(spec.Mounts)
	for i, m := range spec.Mounts {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		if bind && m.Source != "" && !filepath.IsAbs(m.Source) {
			spec.Mounts[i].Source = filepath.Join(c.Bundle, m.Source)
		}
	}
	return &spec
}

// Process translates a process that gets the streams s. The caller has checked its fields (pkg/task).
func Process(p *specs.Process, s *stdio.Streams) (*libcontainer.Process, error) {
	lp := &libcontainer.Process{
		Args:            p.Args,
		Env:             p.Env,
		UID:             int(p.User.UID),
		GID:             int(p.User.GID),
		Cwd:             p.Cwd,
		Label:           p.SelinuxLabel,
		NoNewPrivileges: &p.NoNewPrivileges,
		AppArmorProfile: p.ApparmorProfile,
		Scheduler:       p.Scheduler,
		IOPriority:      p.IOPriority,
		Capabilities:    (*configs.Capabilities)(p.Capabilities),
		LogLevel:        strconv.Itoa(int(logrus.GetLevel())),
	}
	for _, gid := range p.User.AdditionalGids {
		lp.AdditionalGroups = append(lp.AdditionalGroups, int(gid))
	}
	if size := p.ConsoleSize; size != nil {
		if size.Width > math.MaxUint16 || size.Height > math.MaxUint16 {
			return nil, fmt.Errorf("process.consoleSize %dx%d: at most %d each: %w",
				size.Width, size.Height, math.MaxUint16, errdefs.ErrInvalidArgument)
		}
		lp.ConsoleWidth, lp.ConsoleHeight = uint16(size.Width), uint16(size.Height)
	}
	for i, r := range p.Rlimits {
		kind, ok := rlimits[r.Type]
		if !ok {
			return nil, fmt.Errorf("process.rlimits[%d].type %q: not a resource limit of Linux: %w",
				i, r.Type, errdefs.ErrInvalidArgument)
		}
		if r.Soft > r.Hard {
			return nil, fmt.Errorf("process.rlimits[%d].soft %d of %s: must be at most hard, which is %d: %w",
				i, r.Soft, r.Type, r.Hard, errdefs.ErrInvalidArgument)
		}
		lp.Rlimits = append(lp.Rlimits, configs.Rlimit{Type: kind, Hard: r.Hard, Soft: r.Soft})
	}
	var err error
	if lp.CPUAffinity, err = configs.ConvertCPUAffinity(p.ExecCPUAffinity); err != nil {
		return nil, fmt.Errorf("process.execCPUAffinity: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if lp.ConsoleSocket = s.ConsoleSocket(); lp.ConsoleSocket == nil {
		stdin, stdout, stderr := s.Child()
		lp.Stdin, lp.Stdout, lp.Stderr = stdin, stdout, stderr
	}
	return lp, nil
}

// memlock is the limit of locked memory that the shim began with. libcontainer raises it for the whole process when it
// loads device rules of cgroup v2.
var memlock = func() (limit unix.Rlimit) {
	_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) // it does not fail (getrlimit(2))
	return limit
}()

// Rlimits returns the limits of a process that is about to be started: its own if it has any, or those of the
// container, and the limit of locked memory that the shim began with, if the shim has another one now.
func Rlimits(own, container []configs.Rlimit) []configs.Rlimit {
	limits := own
	if len(limits) == 0 {
		limits = container
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &now); err == nil && now == memlock {
		return limits // no need to set it, which may take a capability in a user namespace
	}
	if slices.ContainsFunc(limits, func(l configs.Rlimit) bool { return l.Type == unix.RLIMIT_MEMLOCK }) {
		return limits
	}
	return append(slices.Clip(limits), configs.Rlimit{Type: unix.RLIMIT_MEMLOCK, Soft: memlock.Cur, Hard: memlock.Max})
}

// rlimits are the names of the OCI runtime specification (config.md, POSIX process) and their numbers.
var rlimits = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU,
	"RLIMIT_DATA": unix.RLIMIT_DATA, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS,
	"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE,
	"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS,
	"RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO, "RLIMIT_RTTIME": unix.RLIMIT_RTTIME,
	"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}
