// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"testing"
)

// What people copy from the documentation must not make whoever may create pods root of the node.
func TestTheDocumentationLetsNoUnsafeAnnotationThrough(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*.md")
	must(t, err)
	deploy, err := filepath.Glob("../../deploy/*.toml")
	must(t, err)
	list := regexp.MustCompile(`(?m)^\s*(?:pod|container)_annotations = .*$`)
	element := regexp.MustCompile(`"([^"]*)"`)
	found := 0
	for _, file := range append(docs, deploy...) {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, line := range list.FindAllString(string(text), -1) {
			for _, pattern := range element.FindAllStringSubmatch(line, -1) {
				found++
				for _, key := range UnsafeAnnotations() {
					if ok, err := path.Match(pattern[1], key); ok || err != nil { // as CRI does
						t.Errorf("%s: %q lets %s through (%v)", file, pattern[1], key, err)
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("no example found")
	}
}
