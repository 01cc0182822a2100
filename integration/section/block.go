// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package section

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

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
