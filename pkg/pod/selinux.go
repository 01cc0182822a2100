// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/selinux/go-selinux"
)

// levelForm is CRI's (internal/cri/server/podsandbox, checkSelinuxLevel), compiled at its first use.
var levelForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^s\d(-s\d)??(:c\d{1,4}(\.c\d{1,4})?(,c\d{1,4}(\.c\d{1,4})?)*)?$`)
})

// checkSELinux refuses what would end the context, which becomes an option of a mount. It does so also where SELinux is
// off, as CRI does with the level.
func checkSELinux(o *SELinuxOptions) error {
	if o == nil {
		return nil
	}
	for _, part := range []struct{ name, value string }{{"user", o.User}, {"role", o.Role}, {"type", o.Type}} {
		if strings.ContainsFunc(part.value, notInLabel) || strings.ContainsAny(part.value, ":,") {
			return fmt.Errorf("selinux_options.%s %q: must be a name: %w", part.name, part.value, errdefs.ErrInvalidArgument)
		}
	}
	if o.Level != "" && !levelForm().MatchString(o.Level) {
		return fmt.Errorf("selinux_options.level %q: must have a form such as s0:c1,c2: %w",
			o.Level, errdefs.ErrInvalidArgument)
	}
	return nil
}

func notInLabel(r rune) bool { return notInWord(r) || r == '"' || r == '\\' }

// checkLabel is checkSELinux for a whole context.
func checkLabel(context string) error {
	if strings.ContainsFunc(context, notInLabel) {
		return fmt.Errorf("linux.mountLabel %q: must be an SELinux context: %w", context, errdefs.ErrInvalidArgument)
	}
	return nil
}

// mountLabel is the SELinux context of all files of the pod, "" where SELinux is off. initLabels is label.InitLabels,
// which returns the contexts of a process and of its files.
//
// A pod without a level gets none: with a pause container CRI would give all containers the pause container's level.
// From a shim that is the sandbox it takes none (plugins/sandbox, controllerLocal.Start), so each container has
// categories of its own, and what they share must have none, as files that Docker mounts with the option z.
func (c Config) mountLabel(initLabels func(options []string) (process, mount string, err error)) (string, error) {
	var options []string
	if o := c.SELinux; o != nil {
		parts := [][2]string{{"user", o.User}, {"role", o.Role}, {"type", o.Type}, {"level", o.Level}}
		for _, part := range parts {
			if part[1] != "" {
				options = append(options, part[0]+":"+part[1])
			}
		}
	}
	process, mount, err := initLabels(options)
	if err != nil {
		return "", fmt.Errorf("selinux_options %q: %w", options, err)
	}
	selinux.ReleaseLabel(process) // InitLabels reserves it in this process, which makes no other
	switch {
	case mount == "":
		return "", nil
	case c.MountLabel != "":
		return c.MountLabel, nil
	case c.SELinux != nil && c.SELinux.Level != "":
		return mount, nil
	}
	context, err := selinux.NewContext(mount)
	if err != nil {
		return "", fmt.Errorf("SELinux context %q: %w", mount, err)
	}
	context["level"] = "s0"
	return context.Get(), nil
}
