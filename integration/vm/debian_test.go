// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestParts_AreThePackagesOfOneKernel(t *testing.T) {
	for name, tt := range map[string]struct {
		depends string
		want    []string
	}{
		"metapackage": {
			"linux-image-amd64\n  Depends: linux-image-6.1.0-50-amd64\n",
			[]string{"linux-image-6.1.0-50-amd64"},
		},
		"one package": {"linux-image-6.1.0-50-amd64\n  Depends: kmod\n |Depends: initramfs-tools\n", nil},
		"since 7.x": {
			"linux-image-7.2.13+deb14-amd64\n |Depends: dracut\n  Depends: <linux-initramfs-tool>\n    dracut\n" +
				"  Depends: linux-base-7.2.13+deb14-amd64\n  Depends: linux-binary-7.2.13+deb14-amd64\n" +
				"  Depends: linux-modules-7.2.13+deb14-amd64\n",
			[]string{"linux-binary-7.2.13+deb14-amd64", "linux-modules-7.2.13+deb14-amd64"},
		},
	} {
		if diff := cmp.Diff(tt.want, parts(tt.depends)); diff != "" {
			t.Errorf("parts of %s (-want +got):\n%s", name, diff)
		}
	}
}

func TestKernelOf_FindsOneOfTheProcessor(t *testing.T) {
	for _, k := range Kernels() {
		if got, err := kernelOf(k.Version, k.Arch); got != k || err != nil {
			t.Errorf("kernelOf(%q, %q) = %v, %v, want %v", k.Version, k.Arch, got, err, k)
		}
	}
	if got, err := kernelOf("5.11", "amd64"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("kernelOf(5.11) = %v, %v, want an invalid argument", got, err)
	}
}
