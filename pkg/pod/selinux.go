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

// SELinuxOptions are the parts of an SELinux context that are not the machine's default; "" where they are.
type SELinuxOptions struct {
	User, Role, Type, Level string
}

// levelForm is CRI's (internal/cri/server/podsandbox, checkSelinuxLevel), compiled at its first use.
var levelForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^s\d(-s\d)??(:c\d{1,4}(\.c\d{1,4})?(,c\d{1,4}(\.c\d{1,4})?)*)?$`)
})

// check refuses what would end the context, which is one of the options of a mount. It does so where SELinux is off as well, as
// CRI does with the level.
func (o *SELinuxOptions) check() error {
	if o == nil {
		return nil
	}
	for _, part := range []struct{ name, value string }{{"user", o.User}, {"role", o.Role}, {"type", o.Type}} {
		if strings.ContainsFunc(part.value, notInLabel) || strings.ContainsAny(part.value, ":,") {
			return fmt.Errorf("selinux_options.%s %q: must be a name: %w", part.name, part.value, errdefs.ErrInvalidArgument)
		}
	}
	if o.Level != "" && !levelForm().MatchString(o.Level) {
		return fmt.Errorf("selinux_options.level %q: must have a form such as s0:c1,c2: %w", o.Level, errdefs.ErrInvalidArgument)
	}
	return nil
}

func notInLabel(r rune) bool { return notInWord(r) || r == '"' || r == '\\' }

// checkLabel is check for a whole context.
func checkLabel(context string) error {
	if strings.ContainsFunc(context, notInLabel) {
		return fmt.Errorf("linux.mountLabel %q: must be an SELinux context: %w", context, errdefs.ErrInvalidArgument)
	}
	return nil
}

// options has the form of go-selinux.
func (o *SELinuxOptions) options() []string {
	var all []string
	if o == nil {
		return nil
	}
	for _, part := range []struct{ name, value string }{{"user", o.User}, {"role", o.Role}, {"type", o.Type}, {"level", o.Level}} {
		if part.value != "" {
			all = append(all, part.name+":"+part.value)
		}
	}
	return all
}

// initLabels are the contexts of a process and of its files, which are both "" where SELinux is off.
type initLabels func(options []string) (process, mount string, err error)

// mountLabel is the SELinux context of all files of the pod, "" where SELinux is off.
//
// With a pause container CRI gives the containers of a pod that has no level the pause container's, and each its files. From a
// shim that is the sandbox it takes none (plugins/sandbox, controllerLocal.Start), so each container has categories of its
// own. What they share must have none then, as files that Docker mounts with the option z.
func (c Config) mountLabel(initial initLabels) (string, error) {
	options := c.SELinux.options()
	process, mount, err := initial(options)
	if err != nil {
		return "", fmt.Errorf("selinux_options %q: %w", options, err)
	}
	selinux.ReleaseLabel(process) // reserved in this process, where nobody else looks for one
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
