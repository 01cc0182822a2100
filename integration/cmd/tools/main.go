// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command tools builds containerd, ctr, containerd-shim-runc-v2 and runc into the cache and prints the directory. With
// -releases it also provides the other releases of containerd that the tests run the shim under, with -docker a Docker.
package main

import (
	"context"
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
	docker := flag.Bool("docker", false, "also provide dockerd and a docker")
	flag.Parse()
	dir, err := tools.Build(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
	if *docker {
		if _, err := tools.BuildDocker(ctx); err != nil {
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
