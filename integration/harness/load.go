// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/client"
)

// Load imports the test image into the namespace of ctx and unpacks it with the snapshotter whose name it returns:
// overlayfs, or native on machines where overlayfs does not work, inside of a container for instance.
func (c *Containerd) Load(ctx context.Context, cl *client.Client) (client.Image, string, error) {
	snapshotter := "native"
	plugins, err := cl.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id==overlayfs")
	if err != nil {
		return nil, "", err
	}
	for _, p := range plugins.GetPlugins() {
		if p.GetInitErr() == nil {
			snapshotter = p.GetID()
		}
	}
	archive, err := ImageTar(c.Env)
	if err != nil {
		return nil, "", err
	}
	images, err := cl.Import(ctx, archive)
	if err != nil || len(images) != 1 {
		return nil, "", fmt.Errorf("import the test image: %d images: %w", len(images), err)
	}
	image := client.NewImage(cl, images[0])
	return image, snapshotter, image.Unpack(ctx, snapshotter)
}
