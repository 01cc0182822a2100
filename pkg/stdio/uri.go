// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

// location is where a stream leads.
type location struct{ scheme, path string }

// parse takes a name apart. A name without a scheme is a path as it stands: it
// may contain what would be special in a URI.
func parse(stream, uri string) (location, error) {
	if !strings.Contains(uri, "://") {
		return location{"fifo", uri}, checkPath(stream, uri, uri)
	}
	u, err := url.Parse(uri)
	if err != nil {
		return location{}, fmt.Errorf("%s %q: %w: %w", stream, uri, err, errdefs.ErrInvalidArgument)
	}
	switch u.Scheme {
	case "fifo", "file":
		return location{u.Scheme, u.Path}, checkPath(stream, uri, u.Host+u.Path)
	case "binary", "binary-v2", "ttrpc+unix":
		return location{}, fmt.Errorf("%s %q: scheme %q is not served yet, only fifo and file are: %w",
			stream, uri, u.Scheme, errdefs.ErrNotImplemented)
	}
	return location{}, fmt.Errorf("%s %q: unknown scheme %q, want fifo or file: %w",
		stream, uri, u.Scheme, errdefs.ErrInvalidArgument)
}

func checkPath(stream, uri, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s %q: path is not absolute: %w", stream, uri, errdefs.ErrInvalidArgument)
	}
	return nil
}

// openOutput opens what stdout or stderr leads to.
func openOutput(stream, uri string) (sink, error) {
	l, err := parse(stream, uri)
	if err != nil {
		return nil, err
	}
	var out sink
	switch l.scheme {
	case "file":
		out, err = openFileOutput(l.path)
	default:
		out, err = openFifoOutput(l.path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", stream, uri, err)
	}
	return out, nil
}

// openInput opens what stdin comes from, which can only be a fifo.
func openInput(uri string) (*input, error) {
	const stream = "stdin"
	l, err := parse(stream, uri)
	if err != nil {
		return nil, err
	}
	if l.scheme != "fifo" {
		return nil, fmt.Errorf("%s %q: scheme %q is for output, want fifo: %w", stream, uri, l.scheme, errdefs.ErrInvalidArgument)
	}
	in, err := openFifoInput(l.path)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", stream, uri, err)
	}
	return in, nil
}
