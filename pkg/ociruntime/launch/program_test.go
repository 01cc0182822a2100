// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package launch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/memprog/memprogtest"
	"sandbox.internal/shim/pkg/reaper"
)

func TestTheProgramStandsAlone(t *testing.T) {
	memprogtest.StandsAlone(t, "program_amd64.c", "launcher")
}

func TestTheProgramCannotBeChanged(t *testing.T) {
	l, err := New(reaper.New())
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []int{unix.O_WRONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_TRUNC} {
		f, err := os.OpenFile(l.path(), flag, 0)
		if err != nil {
			continue
		}
		if n, err := f.WriteString("x"); !errors.Is(err, unix.EPERM) {
			t.Errorf("write to the launcher, opened with %#x = %d, %v, want %v", flag, n, err, unix.EPERM)
		}
		_ = f.Close() // only the write matters
	}
	if err := os.Chmod(l.path(), 0); !errors.Is(err, unix.EPERM) && modesAreSealed(t) {
		t.Errorf("chmod of the launcher = %v, want %v", err, unix.EPERM)
	}
	got, err := os.ReadFile(l.path())
	if program, _ := code(); err != nil || !bytes.HasSuffix(got, program) {
		t.Errorf("the launcher has %d bytes, %v, want its %d at the end", len(got), err, len(program))
	}
}

// modesAreSealed says whether the kernel has F_SEAL_EXEC, which came with MFD_EXEC.
func modesAreSealed(t *testing.T) bool {
	t.Helper()
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if err != nil {
		return false
	}
	_ = unix.Close(fd) // nothing was written
	return true
}

// A program that is run by somebody else finds no request and ends.
func TestTheProgramWithoutARequest(t *testing.T) {
	l, err := New(reaper.New())
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	word := func(values ...uint64) (b []byte) {
		for _, v := range values {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	const stepWords = 11
	for name, request := range map[string][]byte{
		"nothing":                       nil,
		"half a size":                   {1, 2, 3},
		"a size and nothing":            word(64),
		"a size below that of a header": word(8),
		"a size that is no multiple":    word(65),
		"a size beyond all bounds":      word(1 << 62),
		"more steps than there is room": word(64, 1<<60, 0, 0, 0, 0, 0, 0),
		"a step more than room":         word(64, 1, 0, 0, 0, 0, 0, 0),
		"more places than room":         word(64, 0, 1<<61, 0, 0, 0, 0, 0),
		"a place more than room":        word(32, 0, 2, 0),
		"a place beyond the end":        word(40, 0, 1, 40, 0),
		"a place between two words":     word(40, 0, 1, 9, 0),
		"a word that leads out":         word(40, 0, 1, 16, 0),
		"no zero at the end":            word(32, 0, 0, 1<<63),
		"no steps":                      word(32, 0, 0, 0),
		"an unknown step":               append(word(24+8*stepWords+8, 1, 0, 99), make([]byte, 8*stepWords)...),
		"a step after itself":           append(word(24+8*stepWords+8, 1, 0), append(word(1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0), 0, 0, 0, 0, 0, 0, 0, 0)...),
	} {
		t.Run(name, func(t *testing.T) {
			in, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := out.Write(request); err != nil {
				t.Fatal(err)
			}
			_ = out.Close() // it was written
			p, err := os.StartProcess(l.path(), []string{"launcher"}, &os.ProcAttr{Env: []string{}, Files: []*os.File{w, w, w, in}})
			_ = in.Close() // the program has its own
			if err != nil {
				t.Fatal(err)
			}
			state, err := p.Wait()
			if err != nil || state.ExitCode() != 255 {
				t.Errorf("the program ended with %v, %v, want status 255", state, err)
			}
		})
	}
}
