// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
)

// hostConfig shows the host's directories of the default list on an empty root.
func hostConfig(empty string, opts ...oci.SpecOpts) config {
	return config{rootfs: empty, opts: append(with(annotations(annotationHostRootfs, "default")), opts...)}
}

// What programs need of /etc is a list (pkg/extension/hostrootfs/parse.go), which this test holds against programs.
func TestHostRootfs_ProgramsFindWhatTheyNeed(t *testing.T) {
	e, empty := newHostEnv(t)
	for name, tt := range map[string]struct {
		script, want string
		mayBeAbsent  bool // the list of packages for the tests does not have it
	}{
		"bash":    {script: `/bin/bash -lc 'echo ~root; id -un'`, want: "/root\nroot\n"},
		"python3": {script: pythonScript, want: "root\nlocalhost\ntext/html\nroots\nzone\n"},
		"git": {script: `cd /tmp && git init -q repo 2>/dev/null && cd repo && echo a >f && git add f &&
			git -c user.name=n -c user.email=e@example.org commit -qm first && git log --format=%s`, want: "first\n"},
		"gcc": {script: `cd /tmp && printf '#include <stdio.h>\nint main(void) { puts("compiled"); }\n' >a.c &&
			cc -o a a.c -pthread -lm && ./a`, want: "compiled\n"},
		"java": {script: `cd /tmp && echo 'public class A { public static void main(String[] a) throws Exception {
			System.out.println("compiled " + (javax.net.ssl.TrustManagerFactory.getInstance("PKIX") != null)
				+ " " + (java.security.KeyStore.getInstance(new java.io.File(System.getProperty("java.home"), "lib/security/cacerts"),
				"changeit".toCharArray()).size() > 0) + " " + (java.nio.file.Files.getFileStore(java.nio.file.Path.of("/tmp")) != null)); } }' >A.java &&
			java -XX:TieredStopAtLevel=1 A.java`, want: "compiled true true true\n", mayBeAbsent: true},
		"node": {
			script: `node -e 'const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
			require("dns").lookup("localhost", e => console.log(e ? e : "localhost", require("os").userInfo().username, zone != ""))'`,
			want: "localhost root true\n", mayBeAbsent: true,
		},
		"runuser": {script: `runuser -u daemon -- id -un`, want: "daemon\n"},
		"perl":    {script: `perl -MPOSIX -MSocket -e 'print getpwuid(0) . "\n"'`, want: "root\n", mayBeAbsent: true},
	} {
		t.Run(name, func(t *testing.T) {
			if !hostHas(name) {
				if tt.mayBeAbsent {
					t.Skipf("this machine has no %s", name)
				}
				t.Fatalf("this machine has no %s", name)
			}
			c := e.run(name, hostConfig(empty, hostPath), "/bin/sh", "-c", tt.script)
			exit := c.exit()
			c.delete()
			if exit != 0 || c.out.String() != tt.want || c.err.String() != "" {
				t.Errorf("%s exited %d, printed %q and said %q; want %q", name, exit, c.out.String(),
					c.err.String(), tt.want)
			}
		})
	}
}

const pythonScript = `/usr/bin/python3 -c '
import getpass, mimetypes, os, pwd, socket, ssl, time
print(pwd.getpwuid(0).pw_name)
print("localhost" if socket.gethostbyname("localhost").startswith("127.") else "no localhost")
print(mimetypes.guess_type("a.html")[0])
print("roots" if ssl.create_default_context().cert_store_stats()["x509_ca"] > 0 else "no roots")
print("zone" if time.tzset() is None and os.path.exists("/etc/localtime") else "no zone")
'`

// hostPath is the usual PATH, and not that of whoever runs the test, which may lead to directories that are not shown.
var hostPath = oci.WithEnv([]string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "TZ",
})

func hostHas(name string) bool {
	return slices.ContainsFunc([]string{"/bin/", "/usr/bin/", "/usr/sbin/"}, func(dir string) bool {
		_, err := os.Stat(dir + name)
		return err == nil
	})
}

// wellKnown are secrets of hosts that not all users may read, and some that many a host lets all read.
var wellKnown = []string{
	"shadow*", "gshadow*", "security/opasswd", "ssh/ssh_host_*_key", "ssl/private", "pki/tls/private", "letsencrypt",
	"krb5.keytab", "credstore*", "cryptsetup-keys.d", "NetworkManager", "netplan", "wpa_supplicant", "ppp",
	"ipsec*", "swanctl",
	"openvpn", "wireguard", "kubernetes", "rancher", "cni", "containerd", "docker", "sudoers*", "gitconfig",
	"npmrc", "pip.conf",
	"wgetrc", "environment", "profile.d", "default", "machine-id", "postgresql", "mysql", "apt",
}

func TestHostRootfs_NoSecretIsVisible(t *testing.T) {
	e, empty := newHostEnv(t)
	secret := map[string]bool{}
	for _, pattern := range wellKnown {
		matches, err := filepath.Glob("/etc/" + pattern)
		e.must(err, pattern)
		for _, path := range matches {
			secret[path] = true
		}
	}
	e.must(filepath.WalkDir("/etc", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode()&0o004 == 0 {
			secret[path] = true
		}
		return nil
	}), "walk /etc")
	if !secret["/etc/shadow"] {
		t.Fatal("this machine has no /etc/shadow")
	}
	for id, list := range map[string]string{
		"default": "default", "named": "/bin,/etc,/lib,/lib64,/sbin,/usr",
		"moved": "default,/etc/ssl:/s/ssl,/etc:/e",
	} {
		got := e.hostRun(id, empty, list, "find /etc /e /s 2>/dev/null; true")
		for path := range strings.Lines(got) {
			path = strings.TrimSpace(path)
			path = strings.Replace(strings.Replace(path, "/e/", "/etc/", 1), "/s/", "/etc/", 1)
			if secret[path] || !strings.HasPrefix(path, "/") {
				t.Errorf("with %s the container sees %s", list, path)
			}
		}
	}
}
