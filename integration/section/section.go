// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package section reads the examples of docs for tests, and changes the parts of docs that tests and measurements
// write. Such a section stands between the lines `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
package section

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Rewrite gives change what stands in the section of a page, and puts in its place what change returns.
func Rewrite(page, name string, change func(former string) string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	changed, err := in(string(text), name, change)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(changed), 0o644) //nolint:gosec // a page of the repository; its mode stays
}

// WantLines puts table into a section if write is set. Otherwise each of its lines has to be there.
func WantLines(page, name, table string, write bool) error {
	var missing error
	err := Rewrite(page, name, func(former string) string {
		if write {
			return table
		}
		for line := range strings.Lines(table) {
			if !strings.Contains(former, line) {
				missing = errors.Join(missing, fmt.Errorf("%s has no line %q in its section %s", page, line, name))
			}
		}
		return former
	})
	return errors.Join(err, missing)
}

func in(text, name string, change func(former string) string) (string, error) {
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->\n"
	before, rest, begun := strings.Cut(text, begin)
	former, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		return "", fmt.Errorf("no section between the lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + change(former) + end + after, nil
}

// Code is a block of code in a page.
type Code struct {
	Language string
	Text     string // without the indent that the block has as part of a list
}

var fenced = regexp.MustCompile("(?ms)^( *)```(\\w+)\n(.*?)^ *```$")

// Blocks returns the blocks of code in a page, in their order.
func Blocks(page string) ([]Code, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var blocks []Code
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		code := strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n")[1:]
		blocks = append(blocks, Code{Language: m[2], Text: code})
	}
	return blocks, nil
}

// Block returns the text of the one block in a page that is in a language and has a text in it.
func Block(page, language, has string) (string, error) {
	blocks, err := Blocks(page)
	if err != nil {
		return "", err
	}
	var found []string
	for _, b := range blocks {
		if b.Language == language && strings.Contains(b.Text, has) {
			found = append(found, b.Text)
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has %d blocks of %s with %q, want one", page, len(found), language, has)
	}
	return found[0], nil
}
