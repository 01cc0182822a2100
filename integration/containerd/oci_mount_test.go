// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// publicDir makes a directory that everybody may enter, outside of what the leak check looks at.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	// The directory above it is Go's, and root's alone.
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func bind(source, destination string, options ...string) oci.SpecOpts {
	return oci.WithMounts([]specs.Mount{{
		Type: "bind", Source: source, Destination: destination,
		Options: append([]string{"rbind"}, options...),
	}})
}

func TestMount_CanHaveAnIDMappingOfItsOwn(t *testing.T) {
	letOthersIn(t)
	dir := publicDir(t)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mount := func(ids []specs.LinuxIDMapping) oci.SpecOpts {
		return oci.WithMounts([]specs.Mount{{
			Type: "bind", Source: dir, Destination: "/mapped", Options: []string{"rbind", "rw"},
			UIDMappings: ids, GIDMappings: ids,
		}})
	}
	const script = "stat -c %u:%g /mapped/file; touch /mapped/$0 && stat -c %u /mapped/$0"
	parent := newEnv(t)
	for _, tt := range []struct {
		name, id, user string
		opts           []oci.SpecOpts
		new            []client.NewContainerOpts
		want           string
	}{
		// Root's files on disk are those of user 1000, and the new file of user 1000 is root's on disk.
		{name: "without a user namespace", id: "plain", opts: with(mount([]specs.LinuxIDMapping{{ContainerID: 0, HostID: 1000, Size: 1}}), oci.WithUIDGID(1000, 1000)), want: "1000:1000\n1000\n"},
		{
			name: "with the mapping of the user namespace", id: "mapped", opts: with(oci.WithUserNamespace(idMap, idMap), mount(idMap)),
			new: []client.NewContainerOpts{client.WithUserNSRemappedSnapshot("mapped-root", parent.image,
				idMap, idMap)},
			want: "0:0\n0\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := parent.sub(t)
			c := e.run(tt.id, config{opts: tt.opts, new: tt.new}, "sh", "-c", script, tt.id)
			c.wantExit(0)
			if got := c.out.String(); got != tt.want {
				t.Errorf("stdout = %q, want %q; stderr %q", got, tt.want, c.err)
			}
			var s unix.Stat_t
			e.must(unix.Stat(filepath.Join(dir, tt.id), &s), "file that the container made")
			if s.Uid != 0 {
				t.Errorf("owner of the file on disk = %d, want 0", s.Uid)
			}
		})
	}
}

func TestMount_RecursivelyReadOnly(t *testing.T) {
	dir := publicDir(t)
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", inner, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(inner, 0); err != nil {
			t.Error(err)
		}
	})
	const script = "for f in /m/outer /m/inner/file; do touch $f 2>/dev/null && echo $f; done; true"
	runRows(t, []row{
		{name: "ro: only the first mount", opts: with(bind(dir, "/m", "ro")), script: script, want: "/m/inner/file\n"},
		{name: "rro: those below it too", opts: with(bind(dir, "/m", "rro")), script: script, want: ""},
		{name: "rro beside a mount of the same that is not", opts: with(bind(dir, "/m", "rro"), bind(dir, "/n", "rw")), script: script + "; touch /n/inner/x && echo n", want: "n\n"},
	})
}

func TestMount_PathCanBeMaskedOrReadOnly(t *testing.T) {
	runRows(t, []row{
		{
			name: "a file is masked", opts: with(oci.WithMaskedPaths([]string{"/etc/passwd", "/no/such/file"})),
			script: "wc -c </etc/passwd; stat -c %F /etc/passwd", want: "0\ncharacter special file\n",
		},
		{
			name: "a directory is masked", opts: with(oci.WithMaskedPaths([]string{"/etc"})),
			script: "ls /etc; touch /etc/x 2>/dev/null || echo refused", want: "refused\n",
		},
		{
			name: "a directory is read-only", opts: with(oci.WithReadonlyPaths([]string{"/etc"})),
			script: "touch /etc/x 2>/dev/null || echo refused; touch /tmp/x && head -c4 /etc/passwd",
			want:   "refused\nroot",
		},
		{
			name: "the root file system is read-only", opts: with(oci.WithRootFSReadonly()),
			script: "touch /x 2>/dev/null || echo refused; touch /run/x && echo mounts are not",
			want:   "refused\nmounts are not\n",
		},
	})
}

func TestMount_TmpfsCopiesUp(t *testing.T) {
	tmpfs := func(options ...string) []oci.SpecOpts {
		return with(oci.WithMounts([]specs.Mount{{
			Type: "tmpfs", Source: "tmpfs", Destination: "/etc",
			Options: options,
		}}))
	}
	const script = `awk '$2 == "/etc" {print $3}' /proc/mounts; ls /etc; touch /etc/x`
	runRows(t, []row{
		{name: "copied up", opts: tmpfs("tmpcopyup"), script: script, want: "tmpfs\ngroup\npasswd\n"},
		{name: "not copied up", opts: tmpfs(), script: script, want: "tmpfs\n"},
	})
}

func TestDevice_OpensOnlyWhereTheConfigurationAllowsIt(t *testing.T) {
	// /dev/fuse has number 10:229 on every Linux (devices.txt) and can be opened without any further capability.
	needKernel(t, "/dev/fuse")
	fuse := func(access string) oci.SpecOpts {
		return spec(func(s *oci.Spec) {
			major, minor := int64(10), int64(229)
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
				specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: access})
		})
	}
	const script = "mknod /tmp/fuse c 10 229; (: <>/tmp/fuse) 2>/dev/null && echo rw\n" +
		"(: </tmp/fuse) 2>/dev/null && echo r; echo end"
	runRows(t, []row{
		{name: "denied", opts: with(), script: script, want: "end\n"},
		{name: "allowed", opts: with(fuse("rwm")), script: script, want: "rw\nr\nend\n"},
		{name: "allowed to be read only", opts: with(fuse("rm")), script: script, want: "r\nend\n"},
		{name: "allowed as all are", opts: with(oci.WithAllDevicesAllowed), script: script, want: "rw\nr\nend\n"},
		{
			name: "made by the runtime and allowed", opts: with(oci.WithLinuxDevice("/dev/fuse", "rwm")),
			script: "stat -c '%t:%T' /dev/fuse; (: <>/dev/fuse) && echo rw", want: "a:e5\nrw\n",
		},
		{name: "those that every container has", opts: with(), script: "for d in null zero full random urandom tty; do stat -c %F /dev/$d; done | uniq -c | tr -s ' '", want: " 6 character special file\n"},
	})
}
