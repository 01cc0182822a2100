// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/licensedetect/local"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
)

// writeSBOM writes what is linked into the binary of a program as a CycloneDX document: what cyclonedx-gomod reads from
// the binary, and the C libraries.
func (r release) writeSBOM(to, program, binary string, linked []part) error {
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	generator, err := bin.NewGenerator(binary, bin.WithIncludeStdlib(true), bin.WithVersionOverride("v"+r.version),
		bin.WithLogger(zerolog.Nop()))
	if err != nil {
		return err
	}
	bom, err := generator.Generate()
	if err != nil {
		return fmt.Errorf("read what %s is made of: %w", binary, err)
	}
	sum := sha256.Sum256(data)
	bom.SerialNumber = uuid.NewHash(sha256.New(), uuid.NameSpaceOID, sum[:], 8).URN()
	bom.Metadata.Timestamp = r.made.Format(time.RFC3339)
	bom.Metadata.Component.Name = program
	bom.Metadata.Component.Version = r.version
	bom.Metadata.Component.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sum)}}
	bom.Metadata.Component.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	dropOwn(bom)
	for _, p := range linked {
		if p.path == "musl" || p.path == "libseccomp" {
			addLibrary(bom, p)
		}
	}
	byName := map[string]part{}
	for _, p := range linked {
		byName[p.path] = p
	}
	for i := range *bom.Components {
		c := &(*bom.Components)[i]
		p, ok := byName[c.Name]
		if !ok {
			return fmt.Errorf("%s lists %s, of which no licence is known", filepath.Base(to), c.Name)
		}
		if err := nameLicence(c, p); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	encoder := cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	return errors.Join(encoder.EncodeVersion(bom, cyclonedx.SpecVersion1_5), f.Close())
}

// dropOwn takes out the project's other module, which a program is built with in the same tree: its name is a path.
func dropOwn(bom *cyclonedx.BOM) {
	own := map[string]bool{}
	*bom.Components = slices.DeleteFunc(*bom.Components, func(c cyclonedx.Component) bool {
		is := strings.HasPrefix(c.Name, "..") || strings.HasPrefix(c.Name, ownModules)
		own[c.BOMRef] = is
		return is
	})
	*bom.Dependencies = slices.DeleteFunc(*bom.Dependencies, func(d cyclonedx.Dependency) bool { return own[d.Ref] })
	for i := range *bom.Dependencies {
		if refs := (*bom.Dependencies)[i].Dependencies; refs != nil {
			*refs = slices.DeleteFunc(*refs, func(ref string) bool { return own[ref] })
		}
	}
}

// addLibrary adds a component that the program depends on.
func addLibrary(bom *cyclonedx.BOM, p part) {
	purl := "pkg:generic/" + p.path + "@" + p.version
	if p.path == "musl" {
		purl = "pkg:deb/debian/" + p.path + "@" + p.version
	}
	*bom.Components = append(*bom.Components, cyclonedx.Component{
		BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: p.path, Version: p.version, PackageURL: purl,
		Scope: cyclonedx.ScopeRequired,
	})
	*bom.Dependencies = append(*bom.Dependencies, cyclonedx.Dependency{Ref: purl})
	for i := range *bom.Dependencies {
		d := &(*bom.Dependencies)[i]
		if d.Ref != bom.Metadata.Component.BOMRef {
			continue
		}
		if d.Dependencies == nil {
			d.Dependencies = &[]string{}
		}
		*d.Dependencies = append(*d.Dependencies, purl)
	}
}

// nameLicence names the licence of a component where it is known. Of modules it is what their texts look like, so it is
// evidence, and no claim.
func nameLicence(c *cyclonedx.Component, p part) error {
	known := map[string]string{"musl": "MIT", "libseccomp": "LGPL-2.1-only", "std": "BSD-3-Clause"}
	if id := known[p.path]; id != "" {
		c.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: id}}}
		return nil
	}
	found, err := local.NewDetector(zerolog.Nop()).Detect(p.path, p.version, p.dir)
	if err != nil {
		return fmt.Errorf("licence of %s: %w", p.path, err)
	}
	var licences cyclonedx.Licenses
	for i := range found {
		licences = append(licences, cyclonedx.LicenseChoice{License: &found[i]})
	}
	if len(licences) > 0 { // the text is in the archive in any case
		c.Evidence = &cyclonedx.Evidence{Licenses: &licences}
	}
	return nil
}
