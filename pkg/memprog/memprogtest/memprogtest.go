// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package memprogtest checks the source of programs that are for pkg/memprog. Tests alone import it.
package memprogtest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"testing"
)

// StandsAlone compiles source and fails the test where the code in section refers to what lies outside of it: the code
// is taken out of the binary as it stands.
func StandsAlone(t *testing.T, source, section string) {
	t.Helper()
	for _, level := range []string{"-O0", "-O1", "-O2", "-O3"} {
		object := filepath.Join(t.TempDir(), "program.o")
		if out, err := exec.CommandContext(t.Context(), "gcc", level, "-g", "-Wall", "-Wextra", "-Werror", "-c", source, "-o", object).CombinedOutput(); err != nil {
			t.Fatalf("gcc %s: %v\n%s", level, err, out)
		}
		f, err := elf.Open(object)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // only read from
		for _, r := range relocations(t, f, section) {
			t.Errorf("%s %s: the code at %#x refers to %q", source, level, r.at, r.symbol)
		}
	}
}

type relocation struct {
	at     uint64
	symbol string
}

// relocations are those of the section that lead out of it.
func relocations(t *testing.T, f *elf.File, name string) []relocation {
	t.Helper()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	section := f.Section(name)
	if section == nil || section.Size == 0 {
		t.Fatalf("no section %s", name)
	}
	table := f.Section(".rela" + name) //nolint:misspell // the name of such sections
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
		s := symbols[elf.R_SYM64(r.Info)-1]
		if int(s.Section) >= len(f.Sections) || f.Sections[s.Section] != section {
			all = append(all, relocation{r.Off, s.Name})
		}
	}
	return all
}
