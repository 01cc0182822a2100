// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Statuses of a command that did not end by itself, as programs like timeout(1) have them. A shell's 126 and 127, for a
// command that cannot be run or is not found, come from the guest.
const (
	StatusTimeout = 124
	StatusFailed  = 125
)

var (
	// errTimeout ends a command that does not end within Config.Timeout.
	errTimeout = errors.New("timeout")
	// errNoSign ends a guest that has not begun the command within bootTime.
	errNoSign = errors.New("no sign of the guest")
)

// attempts bounds how often a guest is booted until the command begins.
const attempts = 3

// Run boots a guest, runs the command in it and returns the command's exit status. When ctx ends, so does the guest. At
// its return no process and no file of the guest is left.
func Run(ctx context.Context, c Config) (int, error) {
	if err := c.check(); err != nil {
		return StatusFailed, err
	}
	dir, err := os.MkdirTemp("", "vmrun-")
	if err != nil {
		return StatusFailed, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the result counts more than a file in the way
	args, err := prepare(ctx, c, dir)
	if err != nil {
		return StatusFailed, err
	}
	for attempt := 1; ; attempt++ {
		status, err := boot(ctx, c, args)
		// Nothing of the command has happened yet, so another guest does no harm.
		if !errors.Is(err, errNoSign) || attempt == attempts {
			return status, err
		}
		fmt.Fprintf(c.Stderr, "vmrun: boot %d of %d: %v\n", attempt, attempts, err)
	}
}

// check returns an error for a machine that cannot be, or that lacks programs of the host.
func (c Config) check() error {
	m, ok := machines[c.Arch]
	switch {
	case !ok:
		return fmt.Errorf("guest with processor %q: %w", c.Arch, errdefs.ErrNotImplemented)
	case c.Root == "" && c.Arch != runtime.GOARCH:
		return fmt.Errorf("guest with processor %q: needs a root of its own: %w", c.Arch, errdefs.ErrInvalidArgument)
	case c.V1 && !c.Systemd:
		return fmt.Errorf("guest with cgroup v1: only systemd mounts it: %w", errdefs.ErrInvalidArgument)
	}
	programs := []string{m.qemu, "busybox", "xz", "depmod", "modprobe", "mkfs.ext4"}
	if c.Systemd && c.Root == "" {
		programs = append(programs, "/lib/systemd/systemd", "dbus-daemon")
	}
	for _, program := range programs {
		if _, err := lookPath(program); err != nil {
			return fmt.Errorf("a guest needs what integration/vm/deps.sh installs: %w", err)
		}
	}
	return nil
}

// prepare writes what the guest boots from into dir and returns qemu's arguments.
func prepare(ctx context.Context, c Config, dir string) ([]string, error) {
	c.Share = slices.Clone(c.Share)
	for i, shared := range c.Share {
		path, err := filepath.Abs(shared)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			return nil, fmt.Errorf("shared directory: %w", err)
		}
		c.Share[i] = path
	}
	k, err := findKernel(ctx, c.Kernel, c.Arch)
	if err != nil {
		return nil, err
	}
	busybox := filepath.Join(c.Root, "bin/busybox")
	if c.Root == "" {
		if busybox, err = lookPath("busybox"); err != nil {
			return nil, err
		}
	}
	base, err := makeBase(ctx, k, busybox)
	if err != nil {
		return nil, err
	}
	first, err := os.ReadFile(filepath.Join(base, "initrd"))
	if err != nil {
		return nil, err
	}
	second, err := runInitramfs(ctx, c, k)
	if err != nil {
		return nil, err
	}
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, append(first, second...), 0o600); err != nil {
		return nil, err
	}
	args := slices.Concat(arguments(c), []string{"-kernel", filepath.Join(base, "kernel"), "-initrd", initrd})
	if c.Disk == "" {
		return args, nil
	}
	disk := filepath.Join(dir, "disk")
	_, err = output(ctx, nil, "mkfs.ext4", "-q", disk, c.Disk)
	return append(args, "-drive", "file="+disk+",format=raw,if=none,id=disk,cache=unsafe,discard=unmap",
		"-device", "virtio-blk-pci,drive=disk"), err
}

// machine is what depends on the guest's processor.
type machine struct {
	qemu    string // program
	model   string // as qemu's -M
	cpu     string // as qemu's -cpu
	console string // the kernel's name of it
}

var machines = map[string]machine{
	"amd64": {
		qemu: "qemu-system-x86_64", model: "q35,hpet=off", console: "ttyS0",
		// No AVX: emulated SSE2 is faster than emulated AVX2.
		cpu: "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+rdrand,+aes,+pclmulqdq,+fsgsbase",
	},
	// A boot takes five times as long with the model max.
	"arm64": {
		qemu: "qemu-system-aarch64", model: "virt,gic-version=3", console: "ttyAMA0", cpu: "neoverse-n1",
	},
}

// arguments returns qemu's, but for what the guest boots from. Output goes to inherited descriptors: the console to 3,
// and what guest/run writes to ports 1 to 3 to those behind it.
func arguments(c Config) []string {
	m := machines[c.Arch]
	args := []string{
		"-M", m.model, "-accel", "tcg,thread=" + threads(c) + ",tb-size=1024",
		"-cpu", m.cpu, "-smp", fmt.Sprint(c.CPUs), "-m", "4G",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-append", kernelParameters(c),
		"-chardev", "file,id=console,path=/dev/fd/3", "-serial", "chardev:console", "-device", "virtio-serial-pci",
	}
	for port := 1; port <= 3; port++ {
		args = append(args, "-chardev", fmt.Sprintf("file,id=port%d,path=/dev/fd/%d", port, 3+port),
			"-device", fmt.Sprintf("virtserialport,chardev=port%d,nr=%d", port, port))
	}
	args = append(args, share("host", "/", ",readonly=on")...)
	for i, dir := range c.Share {
		args = append(args, share(fmt.Sprintf("share%d", i), dir, "")...)
	}
	return args
}

// threads says whether qemu emulates each processor by a thread. Where the kernel changes its own code, as Linux 6.12
// does for a first CPU set, another processor can meet the breakpoint that it puts there meanwhile (int3) when the
// kernel has forgotten it: two runs of three ended by that.
func threads(c Config) string {
	if c.Arch == "amd64" && c.Kernel == "6.12" {
		return "single"
	}
	return "multi"
}

// share is a directory of the host that the guest can mount with 9p.
func share(tag, dir, options string) []string {
	return []string{
		"-fsdev", "local,id=" + tag + ",path=" + strings.ReplaceAll(dir, ",", ",,") +
			",security_model=passthrough,multidevs=remap" + options,
		"-device", "virtio-9p-pci,fsdev=" + tag + ",mount_tag=" + tag,
	}
}

// kernelParameters are those of the guest's kernel.
func kernelParameters(c Config) string {
	parameters := []string{
		"console=" + machines[c.Arch].console, "quiet", "panic=-1",
		// Only for speed under emulation, norandmaps above all: when addresses differ from one exec to the next,
		// nothing that was translated before is used again, and /bin/true takes 28 ms instead of 8.
		"norandmaps", "nokaslr", "mitigations=off", "lpj=10000000", "no_timer_check", "tsc=reliable",
		"cryptomgr.notests", "audit=0",
	}
	if c.V1 { // systemd 256 and 257 want to be told twice
		parameters = append(parameters,
			"systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")
	} else {
		parameters = append(parameters, "cgroup_no_v1=all", "systemd.unified_cgroup_hierarchy=1")
	}
	if c.Systemd {
		parameters = append(parameters,
			"systemd.unit=guest.target", "systemd.show_status=0", "systemd.gpt_auto=0",
			"systemd.firstboot=off", "fstab=no", "luks=no")
	}
	return strings.Join(append(parameters, c.Append), " ")
}
