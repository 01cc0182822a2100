// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command tools builds containerd, ctr, containerd-shim-runc-v2 and runc into the cache and prints the directory. With
// -releases it also provides the other releases of containerd that the tests run the shim under.
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
	flag.Parse()
	dir, err := tools.Build(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
	if !*releases {
		return
	}
	for _, r := range tools.Releases() {
		if _, err := r.Provide(ctx); err != nil { // for the test to skip or to fail
			fmt.Fprintf(os.Stderr, "tools: containerd %s: %v\n", r.Name, err)
		}
	}
}
