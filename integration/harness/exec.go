// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"os"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// The shim's own launcher of execs does not support some containers, such as those with a personality. Libcontainer
// starts their execs. What follows makes any container one of these, and changes nothing else of it.

// AllExecsByLibcontainer reports whether all containers of the tests are to be such: SHIM_TEST_EXEC=libcontainer.
func AllExecsByLibcontainer() bool { return os.Getenv("SHIM_TEST_EXEC") == "libcontainer" }

// ExecByLibcontainer gives a container the personality that it has anyway.
func ExecByLibcontainer(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux}
	return nil
}

// ExecByLibcontainerProfile is a seccomp profile, for CRI, which cannot ask for a personality: it allows everything,
// and names an agent that never gets a request.
const ExecByLibcontainerProfile = `{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/no/agent"}`
