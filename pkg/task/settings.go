// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"strconv"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
)

// settings are what a container is given beside its OCI configuration.
type settings struct {
	stop      process.Stop
	stopAsked bool
	host      hostrootfs.Rootfs
	pidFile   string
}

// settingsOf reads and checks them all, and changes nothing.
func (m *Manager) settingsOf(spec *specs.Spec, o options.Options, containerID string) (a settings, err error) {
	if a.stop, a.stopAsked, err = stopOf(spec, o); err != nil {
		return a, err
	}
	if a.host, err = hostRootfsOf(spec, o); err != nil {
		return a, err
	}
	a.pidFile, err = m.pidFileOf(spec, o, containerID)
	return a, err
}

// hostRootfsOf reads which directories of the host are asked for.
func hostRootfsOf(spec *specs.Spec, o options.Options) (hostrootfs.Rootfs, error) {
	exported := func(s setting) hostrootfs.Setting {
		return hostrootfs.Setting{Key: s.key, Text: s.text, Asked: s.asked()}
	}
	return hostrootfs.Parse(
		exported(settingOf(spec, annotationHostRootfs, "HostRootfs", o.HostRootfs)),
		exported(settingOf(spec, annotationHostRootfsMask, "HostRootfsMask", o.HostRootfsMask)))
}

// recordedStop is what the delete command does with a container that lives.
func (a settings) recordedStop() process.Stop {
	if !a.stopAsked {
		return process.Stop{}
	}
	return a.stop
}

// asked is false where neither an annotation nor an option is given.
func (s setting) asked() bool { return s.here || s.text != "" }

// grace reads a time that may be 0: Go's form, or a number of seconds as `ctr`
// and Kubernetes have it.
func (s setting) grace() (time.Duration, error) {
	d, err := time.ParseDuration(s.text)
	if err != nil {
		var seconds uint64
		seconds, err = strconv.ParseUint(s.text, 10, 32)
		d = time.Duration(seconds) * time.Second
	}
	if err != nil || d < 0 || d > longestTimeout {
		return 0, s.refuse("a time such as 10s or 1m30s, or a number of seconds, from 0 to 24h")
	}
	return d, nil
}
