// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import "reflect"

// What the tests of the parsers see.
var (
	Number        = number
	ParseBlkio    = parseBlkio
	ParseIOStat   = parseIOStat
	ParsePressure = parsePressure
)

// ParseKeyed parses a flat keyed file into the message m.
func ParseKeyed(text []byte, m any) error { return parse(text, reflect.ValueOf(m).Elem(), 0) }
