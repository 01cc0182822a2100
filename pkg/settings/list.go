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

// List returns what a container is given and where it comes from: all that annotations can set, and the options without
// an annotation that are set.
func List(annotations map[string]string, o options.Options) []inspect.Setting {
	fromOptions := cmp.Or(o.File, inspect.FromOption)
	values := reflect.ValueOf(o)
	var list []inspect.Setting
	listed := map[string]bool{"File": true} // which is an origin
	for _, a := range table() {
		if a.parse == nil {
			continue
		}
		listed[a.option] = true
		s := inspect.Setting{Name: a.name, Option: a.option, Value: a.defaultValue, Origin: inspect.FromDefault}
		if text, ok := annotations[Prefix+a.name]; ok {
			s.Value, s.Origin = text, inspect.FromAnnotation
		} else if v := values.FieldByName(a.option); !v.IsZero() {
			s.Value, s.Origin = fmt.Sprint(v), fromOptions
		}
		list = append(list, s)
	}
	for i := range values.NumField() {
		name := values.Type().Field(i).Name
		if v := values.Field(i); !listed[name] && !v.IsZero() {
			list = append(list, inspect.Setting{Name: name, Value: fmt.Sprint(v), Origin: fromOptions})
		}
	}
	return list
}
