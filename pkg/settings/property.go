// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

const propertyPrefix = "org.systemd.property."

// What a property of a unit can be, in GVariant's text format: the types that systemd takes for one and libcontainer
// can read. On other texts the parser behind libcontainer never returns (a digit that is not ASCII), needs memory
// without bound (dictionaries in dictionaries), or panics (an array whose type is none).
const (
	number = `[+-]?(0x[0-9a-fA-F]+|[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?)`
	text   = `'([ -&(-[\]-~]|\\[ -~])*'|"([ !#-[\]-~]|\\[ -~])*"` // printable ASCII, quotes and backslashes after one
	scalar = `(true|false|` + number + `|` + text + `)`
	typed  = `((boolean|byte|u?int(16|32|64)|string|@[bynqiuxtds]) +)?` + scalar
	list   = `(@a[bynqiuxtds] +)?\[ *(` + typed + ` *(, *` + typed + ` *)*)?\]`
)

// They are compiled when a container has properties: no other start of the shim pays for them.
var (
	scalars    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^ *` + typed + ` *$`) })
	properties = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^ *(` + typed + `|` + list + `|b(` + text + `)) *$`)
	})
)

// checkProperties refuses values of properties that libcontainer must not parse.
func checkProperties(annotations map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ok := strings.CutPrefix(key, propertyPrefix)
		if !ok {
			continue
		}
		v := Value{Key: "config.json: annotations: " + key, Text: annotations[key], ByAnnotation: true}
		const allowed = "true, false, a number, or printable ASCII in quotes, also after its type, such as uint64 5"
		if slices.Contains(harmlessProperties, name) {
			if !scalars().MatchString(v.Text) {
				return v.Refuse(allowed)
			}
		} else if !properties().MatchString(v.Text) {
			return v.Refuse(allowed + "; or a list of them in brackets")
		}
	}
	return nil
}
