// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	heading   = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	link      = regexp.MustCompile(`\]\(([^)\s]*)\)`)
	treePath  = regexp.MustCompile(`^(?:pkg|cmd|docs|integration|hack|deploy)/[\w./*-]+`)
)

// markdown returns each Markdown file of this repository without its blocks of code.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files[path] = codeBlock.ReplaceAllString(string(text), "")
		}
	}
	return files
}

// anchors lists the anchors that GitHub gives the headings of a file.
func anchors(text string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z':
				return r
			}
			return -1
		}, strings.ToLower(m[1])))
	}
	return names
}

func TestDocs_LinksResolve(t *testing.T) {
	files := markdown(t)
	for path, text := range files {
		for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := path
			if target != "" {
				to = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(files[to]), anchor) {
				t.Errorf("%s links to %s: %s has no such heading", path, m[1], to)
			}
		}
	}
}

// A path in backquotes may be a pattern, and arguments may follow it.
func TestDocs_PathsExist(t *testing.T) {
	for path, text := range markdown(t) {
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			name := treePath.FindString(m[1])
			if name == "" {
				continue
			}
			if found, err := filepath.Glob(name); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	}
}
