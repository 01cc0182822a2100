// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command tools builds containerd, ctr, containerd-shim-runc-v2 and runc into the cache and prints the directory. With
// -releases it also provides the other releases of containerd that the tests run the shim under, with -clients what
// tests of containerd's clients run, with -kubernetes a Kubernetes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"sandbox.internal/shim/integration/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	releases := flag.Bool("releases", false,
		"also provide the other releases of containerd, as far as this machine can")
	which := flag.String("clients", "",
		"also provide clients: \"debian\" for Debian's Docker and nerdctl alone, \"all\" for all")
	kubernetes := flag.Bool("kubernetes", false, "also provide the programs of a Kubernetes")
	flag.Parse()
	dir, err := tools.Build(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
	if err := clients(ctx, *which); err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
	if *kubernetes {
		if _, err := tools.BuildKubernetes(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "tools:", err)
			os.Exit(1)
		}
	}
	if !*releases {
		return
	}
	for _, r := range tools.Releases() {
		if _, err := r.Provide(ctx); err != nil { // for the test to skip or to fail
			fmt.Fprintf(os.Stderr, "tools: containerd %s: %v\n", r.Name, err)
		}
	}
}

// clients provides what -clients names.
func clients(ctx context.Context, which string) error {
	switch which {
	case "":
		return nil
	case "debian":
		_, docker := tools.DebianDocker(ctx)
		_, _, nerdctl := tools.BuildNerdctl(ctx)
		return errors.Join(docker, nerdctl)
	case "all":
		_, docker := tools.BuildDocker(ctx)
		_, buildkit := tools.BuildBuildKit(ctx)
		_, _, crictl := tools.BuildCrictl(ctx)
		_, _, nerdctl := tools.BuildNerdctl(ctx)
		return errors.Join(docker, buildkit, crictl, nerdctl)
	}
	return fmt.Errorf("-clients %q: want debian or all", which)
}
