// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk" // a format, as the next two
	_ "github.com/goreleaser/nfpm/v2/deb"
	contents "github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const description = `containerd runtime io.containerd.sandbox.v1
A containerd shim v2 that does the work of runc itself, with libcontainer linked
in. The binary is static and needs nothing else. It works with containerd 1.6 and
later, whoever packaged it. sandboxctl shows what its containers do.`

// pack writes a package for one processor, with the name that is usual for its format.
func (r release) pack(format, arch, work string, files []file) (err error) {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info := nfpm.Info{
		Name: name, Arch: arch, Platform: "linux", Version: r.version, Release: revision,
		Section: "admin", Priority: "optional", Maintainer: "The " + name + " authors",
		Description: description, License: "Apache-2.0", DisableGlobbing: true, MTime: r.made,
		Overridables: nfpm.Overridables{
			// No containerd: it may be somebody else's package, or none.
			RPM: nfpm.RPM{BuildHost: "localhost", Group: "Unspecified"},
			// apk alone runs no script of an installation after an upgrade.
			APK: nfpm.APK{Scripts: nfpm.APKScripts{PostUpgrade: filepath.Join(work, "postinstall.sh")}},
		},
	}
	for script, to := range map[string]*string{
		"postinstall.sh": &info.Scripts.PostInstall, "preremove.sh": &info.Scripts.PreRemove,
	} {
		// The time of a script is packed, too.
		*to = filepath.Join(work, script)
		if err := copyFile(*to, filepath.Join(r.root, "deploy/package", script), 0o755); err != nil {
			return err
		}
		if err := os.Chtimes(*to, r.made, r.made); err != nil {
			return err
		}
	}
	for _, f := range files {
		if f.system == "" {
			continue
		}
		c := &contents.Content{
			Source: f.source, Destination: f.system, Type: contents.TypeFile,
			FileInfo: &contents.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: r.made},
		}
		if f.system == zshOfOthers && format == "deb" {
			c.Destination = zshOfDebian
		}
		if f.licence && format == "rpm" {
			c.Type = contents.TypeRPMLicense
		}
		info.Contents = append(info.Contents, c)
	}
	// That these are the package's has to be said, or rpm leaves them.
	for _, dir := range []string{"/usr/share/" + name, doc, doc + "/docs"} {
		info.Contents = append(info.Contents, &contents.Content{
			Destination: dir, Type: contents.TypeDir,
			FileInfo: &contents.ContentFileInfo{Owner: "root", Group: "root", Mode: 0o755, MTime: r.made},
		})
	}
	nfpm.WithDefaults(&info)
	name := filepath.Join(r.out, packager.ConventionalFileName(&info))
	to, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	return packager.Package(&info, to)
}
