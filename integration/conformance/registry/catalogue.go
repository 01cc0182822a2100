// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Users and groups as in Docker's busybox: tests know some of them by name and by number.
const (
	passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
bin:x:2:2:bin:/bin:/bin/false
sys:x:3:3:sys:/dev:/bin/false
sync:x:4:100:sync:/bin:/bin/sync
mail:x:8:8:mail:/var/spool/mail:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
operator:x:37:37:Operator:/var:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
`
	group = `root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
mail:x:8:
www-data:x:33:
operator:x:37:
users:x:100:
nobody:x:65534:
`
)

// listen stands in for nc: as a container's first process it has to end with 143 on SIGTERM, which a first process
// without a handler does not get at all.
const listen = `#!/bin/sh
trap 'exit 143' TERM
busybox nc "$@" &
wait $!
`

// catalogue lists the images that containerd's tests name, in containerd's integration/images/image_list.go, as far as
// they run containers of them.
func catalogue(busybox string) ([]image, error) {
	base, err := rootfs(busybox)
	if err != nil {
		return nil, err
	}
	return []image{
		{
			reference: "ghcr.io/containerd/busybox:1.36",
			layers:    []tree{base},
			config:    ocispec.ImageConfig{Cmd: []string{"sh"}},
		},
		{
			reference: "ghcr.io/containerd/volume-copy-up:2.2", // for its many layers
			layers: []tree{
				base,
				{"/test_dir/test_file": text(0o644, "test_content\n")},
				{"/other_dir/other_file": text(0o644, "other_content\n")},
			},
			config: ocispec.ImageConfig{Cmd: []string{"sh"}, Volumes: map[string]struct{}{"/test_dir": {}}},
		},
		{
			reference: "ghcr.io/containerd/volume-ownership:2.1", // for its owners and its setuid program
			layers: []tree{base, {
				"/bin/bash":       text(0o755, "#!/bin/sh\nexec sh \"$@\"\n"),
				"/usr/bin/passwd": text(0o4755, "#!/bin/sh\n"),
				"/test_dir":       dir(0o755).ownedBy(65534, 65534),
			}},
			config: ocispec.ImageConfig{Cmd: []string{"bash"}, Volumes: map[string]struct{}{"/test_dir": {}}},
		},
	}, nil
}

// rootfs is one static binary under the name of every applet that it lists. The names are hard links: a test masks one
// of them, and through a symbolic link that would mask them all.
func rootfs(busybox string) (tree, error) {
	data, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", busybox, err)
	}
	t := tree{
		"/bin/busybox": text(0o755, string(data)),
		"/dev":         dir(0o755),
		"/etc/group":   text(0o644, group),
		"/etc/passwd":  text(0o644, passwd),
		"/home":        dir(0o755).ownedBy(65534, 65534),
		"/lib":         dir(0o755),
		"/proc":        dir(0o555),
		"/root":        dir(0o700),
		"/run":         dir(0o755),
		"/sys":         dir(0o555),
		"/tmp":         dir(0o1777),
		"/usr/sbin":    dir(0o755).ownedBy(1, 1),
		"/var/run":     dir(0o755),
		"/var/www":     dir(0o755).ownedBy(33, 33),
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			t["/bin/"+applet] = hardlink("/bin/busybox")
		}
	}
	t["/bin/nc"] = text(0o755, listen)
	return t, nil
}
