// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package vm runs one command in a throw-away virtual machine with a full cgroup v2. qemu emulates the machine, so no
// KVM is needed; a boot takes some 3 s, or 6 s with systemd. The command sees the files of the host:
//
//	/               the host's, read-only, under an overlay on a tmpfs: all may be written, nothing stays;
//	                with Config.Root that directory instead, and of the host only Config.Dir and Config.See
//	Config.Share    directories of the host that may be written
//	/run, $TMPDIR, /dev/shm, /var/lib/containerd
//	                empty tmpfs, as is Config.Tmpfs
//	/disk           an empty ext4 file system on /dev/vda, with Config.Disk
//	/sys/fs/cgroup  cgroup2 with all controllers; systemd enables only cpuset, cpu, io, memory and pids below the root;
//	                with Config.V1 cgroup v1, as systemd mounts it
//	/sys/kernel/security
//	                securityfs, so that AppArmor is seen, unless it is switched off by Config.Append
//	network         lo
//
// The host's kernel, its cgroups and its /boot stay as they are. The guest's kernel is Debian's.
//
// # How it boots
//
// The kernel starts guest/init from an initramfs: it mounts the above and becomes guest/pid1 or systemd. Either starts
// guest/run, which runs the command and writes to three virtio ports: the command's output, its standard error, and
// "started" and "status N". The machine turns off after the status.
//
// # Why it is as it is
//
//   - The kernel is booted as an ELF file (qemu's PVH entry): a bzImage unpacks itself, 2.4 s when emulated.
//   - Emulated, to start a process takes 10 to 20 times as long, a SHA-256 50 times, plain integer code no longer. With
//     more virtual CPUs than the host has it takes up to twice as long. The default is 4, which tests of CPU sets need.
//   - The CPU has no AVX: only code for GOAMD64=v1 and v2 runs.
//   - systemd must not reach sysinit.target: systemd-tmpfiles would empty /tmp, and what is shared below it.
//   - An overlay cannot have its upper directory on an overlay, nor can a unix socket be bound on 9p: hence the tmpfs.
//   - A directory of Config.Share is not cached: a program there takes ten times as long to start as elsewhere.
//   - Now and then a guest hangs before the command begins. It is booted again, since nothing has happened yet.
//
// # Goroutines
//
// Run returns when qemu has ended and all output was copied. It owns the goroutines that copy; they end with qemu. If
// the process of Run is killed, the kernel kills qemu.
package vm
