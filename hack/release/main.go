// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command release makes the files of a release from built binaries: archives, packages for Debian, Fedora, Alpine and
// their relatives, a list of what is linked, and the sums of all. `make release` runs it. The same binaries and the
// same SOURCE_DATE_EPOCH give the same bytes.
//
// It is a module of its own: what it needs is in no program of the project.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const name = "containerd-shim-sandbox-v1"

// tool is the operator's program, which is built without C and packed with the shim.
const tool = "sandboxctl"

// release is what the arguments ask for.
type release struct {
	root    string    // of the project
	out     string    // directory of the result; what is in it already gets its sum, too
	version string    // without revision of the package
	made    time.Time // of the commit; each file that is packed is that old
	formats []string  // of packages
}

// revision is that of the package: what is packed anew from the same version has a higher one.
const revision = "1"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: release [option...] ARCH=DIRECTORY...")
		flags.PrintDefaults()
	}
	var r release
	flags.StringVar(&r.root, "root", ".", "directory of the project")
	flags.StringVar(&r.out, "out", "bin/release", "directory to write to")
	flags.StringVar(&r.version, "version", "", "version; that of the file VERSION if empty")
	formats := flags.String("formats", "deb,rpm,apk", "packages to make; archives are made for all three only")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r.formats = strings.Split(*formats, ",")
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds <= 0 {
		return fmt.Errorf("SOURCE_DATE_EPOCH %q: want seconds since 1970, the time of the commit", epoch)
	}
	r.made = time.Unix(seconds, 0).UTC()
	if r.version == "" {
		text, err := os.ReadFile(filepath.Join(r.root, "VERSION"))
		if err != nil {
			return err
		}
		r.version = strings.TrimSpace(string(text))
	}
	if flags.NArg() == 0 {
		return errors.New("no ARCH=DIRECTORY given")
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, arg := range flags.Args() {
		arch, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want ARCH=DIRECTORY, in which %s and %s are", arg, name, tool)
		}
		if err := r.makeFor(arch, dir); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	// As `sha256sum -c` reads it.
	return command(r.out, "sh", "-c", `rm -f SHA256SUMS && sums=$(sha256sum -- *) && echo "$sums" >SHA256SUMS`)
}

// makeFor writes all files for one processor, of the binaries in dir.
func (r release) makeFor(arch, dir string) (err error) {
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	linked := map[string][]part{}
	var all []part
	for _, program := range []string{name, tool} {
		if linked[program], err = r.linkedInto(filepath.Join(dir, program)); err != nil {
			return err
		}
		if program == name {
			libraries, err := r.libraries(arch)
			if err != nil {
				return err
			}
			linked[program] = append(linked[program], libraries...)
		}
		if err := readLicences(linked[program]); err != nil {
			return err
		}
		all = append(all, linked[program]...)
	}
	files, err := r.files(work, dir, licenceTexts(all))
	if err != nil {
		return err
	}
	for _, format := range r.formats {
		if err := r.pack(format, arch, work, files); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
	}
	if len(r.formats) < 3 {
		return nil
	}
	for _, program := range []string{name, tool} {
		binary := filepath.Join(dir, program)
		base := filepath.Join(r.out, fmt.Sprintf("%s-%s-linux-%s", program, r.version, arch))
		if err := copyFile(base, binary, 0o755); err != nil {
			return err
		}
		if err := r.writeSBOM(base+".cdx.json", program, binary, linked[program]); err != nil {
			return err
		}
	}
	out, err := filepath.Abs(r.out)
	if err != nil {
		return err
	}
	return r.archive(filepath.Join(out, fmt.Sprintf("%s-%s-linux-%s.tar.gz", name, r.version, arch)), work, files)
}

func copyFile(to, from string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, data, mode); err != nil {
		return err
	}
	return os.Chmod(to, mode) // that the umask says otherwise is of no matter
}
