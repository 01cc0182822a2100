// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/options"
)

// parseOptions reads the runtime options among what containerd sends at start. Messages of other types are left
// alone: containerd 2.3 sends extensions that are not options.
func parseOptions(list []*anypb.Any) (options.Options, error) {
	for _, a := range list {
		if options.Known(a.GetTypeUrl()) {
			return options.Decode(a)
		}
	}
	return options.Options{}, nil
}
