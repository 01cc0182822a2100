// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Command tools builds containerd, ctr, containerd-shim-runc-v2 and runc into the cache and prints the folder.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"sandbox.internal/shim/integration/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := tools.Build(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
