// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"strconv"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"sandbox.internal/shim/pkg/options"
)

// parseProperty is Parse of a container that has the property, which is allowed.
func parseProperty(name, value string) error {
	spec := annotated()
	spec.Annotations[propertyPrefix+name] = value
	_, err := table.Parse(spec, options.Options{AllowUnsafeAnnotations: []string{"org.systemd.property"}}, "ns", "c1")
	return err
}

// On some of them libcontainer's parser does not return, or panics.
func TestProperties_AreRefusedThatLibcontainerCannotParse(t *testing.T) {
	for _, value := range []string{
		"", " ", "߀", "uint64 ߀", "5߀", "'߀'", "'\x00'", "'a\nb'", "\t5", "5\n", "'open", `'open\'`, "'a'b'", "5 6", "5x",
		"+", "0x",
		"yes", "uint64", "@i []", "@y []", "@zz 1", "@ 'x'", "@a{sv} []", "@(ii) []", "<5>", "<@i []>", "[[5]]", "[", "[5",
		"[5,]",
		"{1: 2}", "@i {}", "{1: {1: {1: {1: {1: {1: {1: {1: {1: {1: {1: 1}}}}}}}}}}}", "objectpath 'x'", "signature 'x'",
	} {
		for _, name := range append([]string{"After"}, harmlessProperties...) {
			wantInvalid(t, parseProperty(name, value), propertyPrefix+name, strconv.Quote(value), "true, false, a number")
		}
	}
	for _, value := range []string{"[]", "['a.service']", "@as []", "b'x'"} {
		wantInvalid(t, parseProperty("Delegate", value), propertyPrefix+"Delegate", strconv.Quote(value))
	}
}

func TestProperties_AreAllowed(t *testing.T) {
	for name, values := range map[string][]string{
		"CollectMode": {"'inactive-or-failed'", `"inactive"`, "string 'inactive'", "@s 'inactive'"},
		"Delegate":    {"true", "false", "boolean true"},
		"KillSignal":  {"15", " 15 ", "int32 15", "@i 15"}, "TimeoutStopUSec": {"uint64 123456789", "@t 0", "uint64 0x10"},
		"TimeoutStopSec": {"5", "uint16 5", "2.5", "1e2", "+1"},
		"Description":    {`'it\'s {one}'`, `"it's <two> \"\\\""`, "''"},
		"After":          {"['a.service']", "['a.service', \"b.service\"]", "[ 'a' , 'b' ]", "@as []", "@as ['a']"},
		"AllowedCPUs":    {"[byte 1, 2]", "@ay [1,0x02]", "b'x'"},
	} {
		for _, value := range values {
			if err := parseProperty(name, value); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := dbus.ParseVariant(value, dbus.Signature{}); err != nil {
				t.Errorf("%s %q, which is allowed: libcontainer's parser: %v", name, value, err)
			}
		}
	}
}

func FuzzProperties(f *testing.F) {
	for _, value := range []string{"'a'", "uint64 5", "@as ['a', 'b']", "[byte 1, 2]", `b'\x00'`, "߀", "@i []"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if scalars().MatchString(value) && !properties().MatchString(value) {
			t.Errorf("%q is allowed for some properties alone", value)
		}
		if !properties().MatchString(value) {
			return
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is allowed", value)
		}
		_, _ = dbus.ParseVariant(value, dbus.Signature{}) // does not panic
	})
}
