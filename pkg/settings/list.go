// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"cmp"
	"fmt"
	"reflect"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/options"
)

// List returns the settings of a container, each with its origin: all that have an annotation, and the other options
// that are set.
func (t Table) List(annotations map[string]string, o options.Options) []inspect.Setting {
	fromOptions := cmp.Or(o.File, inspect.FromOption)
	var list []inspect.Setting
	values := t.values(annotations, o, "", "")
	for _, s := range t.ofContainers() {
		shown := inspect.Setting{Name: s.Name, Option: s.Option, Value: s.Default, Origin: inspect.FromDefault}
		if v := values.Of(s.Name); v.ByAnnotation {
			shown.Value, shown.Origin = v.Text, inspect.FromAnnotation
		} else if v.IsSet() {
			shown.Value, shown.Origin = v.Text, fromOptions
		}
		list = append(list, shown)
	}
	fields := reflect.ValueOf(o)
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		if v := fields.Field(i); !v.IsZero() && name != "Settings" && name != "File" {
			list = append(list, inspect.Setting{Name: name, Value: fmt.Sprint(v), Origin: fromOptions})
		}
	}
	return list
}
