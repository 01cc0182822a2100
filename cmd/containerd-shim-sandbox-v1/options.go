// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

// startOptions are the options that matter before the daemon runs. The rest, and unknown keys, are Create's to judge.
type startOptions struct {
	ShimCgroup string
}

// parseOptions reads startOptions from the first message that sets them. Messages of other types are left alone:
// containerd 2.3 sends extensions that are not options.
func parseOptions(list []*anypb.Any) (startOptions, error) {
	for _, a := range list {
		o, err := parseOption(a)
		if err != nil {
			return startOptions{}, err
		}
		if o != (startOptions{}) {
			return o, nil
		}
	}
	return startOptions{}, nil
}

func parseOption(a *anypb.Any) (startOptions, error) {
	var runc runcoptions.Options
	var generic runtimeoptions.Options
	switch {
	case a.MessageIs(&runc):
		if err := a.UnmarshalTo(&runc); err != nil {
			return startOptions{}, fmt.Errorf("decode options %q: %w: %w", a.GetTypeUrl(), err, errdefs.ErrInvalidArgument)
		}
		return startOptions{ShimCgroup: runc.GetShimCgroup()}, nil
	case a.MessageIs(&generic):
		if err := a.UnmarshalTo(&generic); err != nil {
			return startOptions{}, fmt.Errorf("decode options %q: %w: %w", a.GetTypeUrl(), err, errdefs.ErrInvalidArgument)
		}
		return parseTOML(generic.GetConfigBody(), generic.GetConfigPath())
	}
	return startOptions{}, nil
}

// parseTOML reads the table that CRI sends as config_body, or the file that config_path names. As in containerd, a
// path wins: CRI fills the body only without one.
func parseTOML(body []byte, path string) (startOptions, error) {
	source := "config_body"
	if path != "" {
		source = path
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return startOptions{}, fmt.Errorf("read options: %w: %w", err, errdefs.ErrNotFound)
		}
		if err != nil {
			return startOptions{}, fmt.Errorf("read options: %w", err)
		}
		body = b
	}
	var o startOptions
	if err := toml.Unmarshal(body, &o); err != nil {
		return startOptions{}, fmt.Errorf("decode options in %s as TOML: %w: %w", source, err, errdefs.ErrInvalidArgument)
	}
	return o, nil
}
