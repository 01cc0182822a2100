// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// location is where a stream leads.
type location struct {
	scheme, path string
	args         []string // of a logging binary
	id           string   // of streaming
}

// parse parses a name. A name without a scheme is a path, whose characters have no special meaning.
func parse(stream, uri string) (l location, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %q: %w: %w", stream, uri, err, errdefs.ErrInvalidArgument)
		}
	}()
	u := &url.URL{Scheme: "fifo", Path: uri}
	if strings.Contains(uri, "://") {
		if u, err = url.Parse(uri); err != nil {
			return l, err
		}
	}
	l = location{scheme: u.Scheme, path: u.Path}
	switch u.Scheme {
	case "fifo", "file":
	case "binary", "binary-v2":
		if l.args, err = binaryArgs(u.RawQuery); err != nil {
			return l, err
		}
	case "ttrpc+unix":
		if l.id = u.Query().Get("streaming_id"); l.id == "" {
			return l, errors.New("no streaming_id")
		}
	default:
		return l, fmt.Errorf("unknown scheme %q, want fifo, file, binary, binary-v2 or ttrpc+unix", u.Scheme)
	}
	if !filepath.IsAbs(u.Host + u.Path) {
		return l, errors.New("path is not absolute")
	}
	return l, nil
}

// binary reports whether l is a logging binary.
func (l location) binary() bool { return l.scheme == "binary" || l.scheme == "binary-v2" }

// binaryArgs returns the arguments of a logging binary: each key once, followed by its first value, which may be empty.
// The runc shim passes them in random order (process/io_util.go, NewBinaryCmd); here it is that of the query.
func binaryArgs(query string) ([]string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	args := make([]string, 0, 2*len(values))
	for pair := range strings.SplitSeq(query, "&") {
		escaped, _, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(escaped)
		if err != nil {
			return nil, err
		}
		if v, ok := values[key]; ok {
			args = append(args, key, v[0])
			delete(values, key)
		}
	}
	return args, nil
}

// openOutput opens what stdout or stderr leads to, except a logging binary.
func (c Config) openOutput(ctx context.Context, stream, uri string) (sink, error) {
	l, err := parse(stream, uri)
	if err != nil {
		return nil, err
	}
	var out sink
	switch l.scheme {
	case "binary", "binary-v2":
		err = fmt.Errorf("a logging binary takes both outputs, want it as stdout: %w", errdefs.ErrInvalidArgument)
	case "ttrpc+unix":
		out, err = c.openStreamOutput(l)
	case "file":
		out, err = openFileOutput(l.path)
	default:
		out, err = c.openFifoOutput(ctx, l.path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", stream, uri, err)
	}
	return out, nil
}

// openInput opens what stdin comes from.
func (c Config) openInput() (*input, error) {
	const stream = "stdin"
	l, err := parse(stream, c.Stdin)
	if err != nil {
		return nil, err
	}
	var in *input
	switch l.scheme {
	case "fifo":
		in, err = openFifoInput(l.path)
	case "ttrpc+unix":
		in, err = c.openStreamInput(l)
	default:
		err = fmt.Errorf("scheme %q is for output, want fifo or ttrpc+unix: %w", l.scheme, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", stream, c.Stdin, err)
	}
	return in, nil
}

// openFileOutput opens a log file, and creates it and its directory if needed, with the modes of the runc shim
// (containerd-shim-runc-v2/process/io.go, createIO). stdout and stderr may name the same file, since appends are
// atomic.
func openFileOutput(path string) (sink, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, unusable(err)
	}
	return openAppend(path, unix.O_CREAT)
}

// openAppend does not wait even if path turns out to be a fifo without reader.
func openAppend(path string, flags int) (sink, error) {
	fd, err := openFD(path, flags|unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, unusable(err)
	}
	end, err := newPipeEnd(fd, path)
	if err != nil {
		return nil, fmt.Errorf("append: %w", err)
	}
	return end, nil
}
