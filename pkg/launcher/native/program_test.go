// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package native

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// machine is a processor that the program is written for.
type machine struct {
	name     string // as Go has it
	compiler string // which other machines may have too
	// relative are the types of relocations that hold wherever the code lies. Those of arm64's ADRP are not among them:
	// they count pages, and the code does not move by whole pages.
	relative []uint32
}

func machines() []machine {
	list := []machine{
		{"amd64", "x86_64-linux-gnu-gcc", []uint32{uint32(elf.R_X86_64_PC32), uint32(elf.R_X86_64_PLT32)}},
		{"arm64", "aarch64-linux-gnu-gcc", []uint32{uint32(elf.R_AARCH64_CALL26), uint32(elf.R_AARCH64_JUMP26)}},
	}
	for i := range list {
		if list[i].name == runtime.GOARCH {
			list[i].compiler = "gcc"
		}
	}
	return list
}

// The code is taken out of the binary as it stands, so it must not refer to anything outside of its section, nor by
// addresses.
func TestProgram_StandsAlone(t *testing.T) {
	for _, m := range machines() {
		t.Run(m.name, func(t *testing.T) {
			for _, level := range []string{"-O0", "-O1", "-O2", "-O3"} {
				object := m.compile(t, "program.c", level, "-Wall", "-Wextra", "-Werror")
				for _, r := range m.relocations(t, object) {
					t.Errorf("%s: the code at %#x has a relocation of type %d to %q", level, r.at, r.kind, r.symbol)
				}
			}
		})
	}
}

// The check above finds what it is there for.
func TestProgram_ThatDoesNotStandAlone(t *testing.T) {
	const code = `__attribute__((section("native"), used, noinline)) `
	for _, tt := range []struct {
		name, source string
		machines     []string // where the compiler makes such a relocation; all if there are none
		want         string   // the symbol
	}{
		{"a call of another section", "void g(void); " + code + "void f(void) { g(); g(); }", nil, "g"},
		{"data", "int d; " + code + "int f(void) { return d; }", nil, "d"},
		{"an address in its own section", code + "void f(void) {}" +
			`__asm__(".pushsection native, \"ax\"; .quad f; .popsection");`, nil, "f"},
		{"its own page", code + "static void g(void) {} " + code + "void *f(void) { return g; }", []string{"arm64"}, ""},
	} {
		for _, m := range machines() {
			if tt.machines != nil && !slices.Contains(tt.machines, m.name) {
				continue
			}
			t.Run(tt.name+" on "+m.name, func(t *testing.T) {
				source := filepath.Join(t.TempDir(), "source.c")
				if err := os.WriteFile(source, []byte(tt.source), 0o600); err != nil {
					t.Fatal(err)
				}
				found := m.relocations(t, m.compile(t, source, "-O1"))
				if len(found) == 0 || found[0].symbol != tt.want {
					t.Errorf("relocations of %q that lead out = %v, want one to %q", tt.source, found, tt.want)
				}
			})
		}
	}
}

// compile returns the object file, compiled as cgo does.
func (m machine) compile(t *testing.T, source string, flags ...string) *elf.File {
	t.Helper()
	if _, err := exec.LookPath(m.compiler); err != nil && os.Getenv("CI") == "" {
		t.Skipf("CANNOT RUN HERE: %v (make deps ARCH=%s)", err, m.name)
	}
	object := filepath.Join(t.TempDir(), "program.o")
	flags = append(flags, "-g", "-fPIC", "-c", source, "-o", object)
	if out, err := exec.CommandContext(t.Context(), m.compiler, flags...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", m.compiler, flags, err, out)
	}
	f, err := elf.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // only read
	return f
}

type relocation struct {
	at     uint64
	kind   uint32
	symbol string
}

// relocations are those of the code that lead out of it, or that do not hold elsewhere.
func (m machine) relocations(t *testing.T, f *elf.File) []relocation {
	t.Helper()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	section := f.Section("native")
	if section == nil || section.Size == 0 {
		t.Fatal("no section native")
	}
	table := f.Section(".relanative")
	if table == nil {
		return nil
	}
	data, err := table.Data()
	if err != nil {
		t.Fatal(err)
	}
	entries := make([]elf.Rela64, len(data)/binary.Size(elf.Rela64{}))
	if err := binary.Read(bytes.NewReader(data), f.ByteOrder, entries); err != nil {
		t.Fatal(err)
	}
	var all []relocation
	for _, r := range entries {
		s, kind := symbols[elf.R_SYM64(r.Info)-1], elf.R_TYPE64(r.Info)
		inside := int(s.Section) < len(f.Sections) && f.Sections[s.Section] == section
		if !inside || !slices.Contains(m.relative, kind) {
			all = append(all, relocation{r.Off, kind, s.Name})
		}
	}
	return all
}

// By nobody, root included: a container of the host's root owns the file, and reaches it as /proc/PID/exe.
func TestProgram_CannotBeChanged(t *testing.T) {
	p, err := New("shim-test", "test")
	if err != nil {
		t.Fatal(err)
	}
	path := pathOf(p.file)
	for what, change := range map[string]func() error{
		"write":        func() error { return os.WriteFile(path, nil, 0) },
		"truncate":     func() error { return os.Truncate(path, 0) },
		"chmod":        func() error { return os.Chmod(path, 0) },
		"chown":        func() error { return os.Chown(path, 1, 1) },
		"utimes":       func() error { return os.Chtimes(path, time.Now(), time.Now()) },
		"an ACL":       func() error { return unix.Setxattr(path, "system.posix_acl_access", acl(4), 0) },
		"an attribute": func() error { return unix.Setxattr(path, "user.x", []byte("x"), 0) },
		"a label":      func() error { return unix.Setxattr(path, "security.x", []byte("x"), 0) },
		"a capability": func() error { return unix.Setxattr(path, "security.capability", []byte("x"), 0) },
	} {
		if err := change(); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s of the program = %v, want %v", what, err, unix.EROFS)
		}
	}
	// A lease holds up who executes the file.
	other, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := unix.FcntlInt(other.Fd(), unix.F_SETLEASE, unix.F_WRLCK); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a lease of the program = %v, want %v", err, unix.EAGAIN)
	}
	got, err := io.ReadAll(other)
	if code, _ := code(); err != nil || !bytes.HasSuffix(got, code) {
		t.Errorf("the program has %d bytes, %v, want its %d at the end", len(got), err, len(code))
	}
}

// acl returns an ACL that gives everybody the same permissions, see include/uapi/linux/posix_acl_xattr.h.
func acl(permissions uint16) []byte {
	const version, owner, group, others, nobody = 2, 1, 4, 0x20, 0xffffffff
	b := binary.LittleEndian.AppendUint32(nil, version)
	for _, tag := range []uint16{owner, group, others} {
		b = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, tag), permissions)
		b = binary.LittleEndian.AppendUint32(b, nobody)
	}
	return b
}

// At the limit of descriptors, which the machine may have again.
func TestNew_SaysThatTheMachineCannotOnlyWhereItNeverCan(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(free) // it says which descriptor is next
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	_, err = New("shim-test", "test")
	if undo := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); undo != nil {
		t.Fatal(undo)
	}
	if !errors.Is(err, unix.EMFILE) || errdefs.IsNotImplemented(err) {
		t.Errorf("error = %v, want %v alone", err, unix.EMFILE)
	}
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EINVAL, unix.EACCES, unix.EPERM, unix.EBUSY} {
		if err := Unsupported(errno); !errdefs.IsNotImplemented(err) || !errors.Is(err, errno) {
			t.Errorf("error of a machine that cannot = %v", err)
		}
	}
}

// A program that is run by somebody else finds no request and ends.
func TestProgram_WithoutARequest(t *testing.T) {
	p, err := New("shim-test", "test")
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, request := range map[string][]byte{"nothing": nil, "half a size": {1, 2, 3}, "a size and nothing": {64, 7: 0}} {
		t.Run(name, func(t *testing.T) {
			in, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := out.Write(request); err != nil {
				t.Fatal(err)
			}
			_ = out.Close() // it was written
			process, err := os.StartProcess(pathOf(p.file), []string{"test"}, &os.ProcAttr{
				Env: []string{}, Files: []*os.File{w, w, w, in},
			})
			_ = in.Close() // the program has its own
			if err != nil {
				t.Fatal(err)
			}
			state, err := process.Wait()
			if err != nil || state.ExitCode() != 255 {
				t.Errorf("the program ended with %v, %v, want status 255", state, err)
			}
		})
	}
}
