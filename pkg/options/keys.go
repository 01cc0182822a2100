// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package options

import "reflect"

// keyNames are the keys of the TOML form.
func keyNames() []string {
	t := reflect.TypeFor[Options]()
	names := make([]string, 0, t.NumField())
	for f := range t.Fields() {
		names = append(names, f.Name)
	}
	return names
}
