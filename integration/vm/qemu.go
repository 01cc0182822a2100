// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"strconv"
	"strings"
)

// The numbers of the pipes that qemu inherits.
const (
	pipeConsole = iota + 3 // behind standard input, output and error
	pipeStdout
	pipeStderr
	pipeStatus
)

// machine is what depends on the guest's processor.
type machine struct {
	qemu, pkg string // the program and Debian's package of it
	model     string // as qemu's -M
	cpu       string // as qemu's -cpu
	console   string // the kernel's name of it
}

func machines() map[string]machine {
	return map[string]machine{
		"amd64": {
			qemu: "qemu-system-x86_64", pkg: "qemu-system-x86", model: "q35,hpet=off", console: "ttyS0",
			// No AVX: emulated SSE2 is faster than emulated AVX2.
			cpu: "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+rdrand,+aes,+pclmulqdq,+fsgsbase",
		},
		// A boot takes five times as long with the model max.
		"arm64": {
			qemu: "qemu-system-aarch64", pkg: "qemu-system-arm", model: "virt,gic-version=3", console: "ttyAMA0",
			cpu: "neoverse-n1",
		},
	}
}

// arguments returns qemu's. disk is empty or the image of the disk.
func arguments(c Config, b base, initrd, disk string) []string {
	m := machines()[c.Arch]
	args := []string{
		"-M", m.model, "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", m.cpu, "-smp", strconv.Itoa(c.CPUs), "-m", "4G",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", b.kernel, "-initrd", initrd, "-append", kernelParameters(c),
		"-chardev", pipe("console", pipeConsole), "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
	}
	for port, name := range []string{"stdout", "stderr", "status"} { // guest/run writes to ports 1 to 3
		args = append(args,
			"-chardev", pipe(name, pipeStdout+port),
			"-device", fmt.Sprintf("virtserialport,chardev=%s,nr=%d", name, port+1))
	}
	args = append(args, share("host", "/", ",readonly=on")...)
	for i, dir := range c.Share {
		args = append(args, share("share"+strconv.Itoa(i), dir, "")...)
	}
	if disk != "" {
		args = append(args,
			"-drive", "file="+disk+",format=raw,if=none,id=disk,cache=unsafe,discard=unmap",
			"-device", "virtio-blk-pci,drive=disk")
	}
	return args
}

// pipe is a device whose output goes to an inherited descriptor.
func pipe(id string, fd int) string { return fmt.Sprintf("file,id=%s,path=/dev/fd/%d", id, fd) }

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
		"console=" + machines()[c.Arch].console, "quiet", "panic=-1",
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
