// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

// help is for a person who runs the binary by hand. A test keeps it equal to testdata/help.golden.
const help = `containerd-shim-sandbox-v1 is a containerd runtime (shim v2), type io.containerd.sandbox.v1.
containerd runs it; there is nothing to start by hand. Put it beside containerd or into a
folder of containerd's PATH, then tell containerd's clients to use it:

  ctr       ctr run --rm --runtime io.containerd.sandbox.v1 docker.io/library/busybox:latest demo echo hello
  nerdctl   nerdctl run --rm --runtime io.containerd.sandbox.v1 busybox echo hello
  Docker    /etc/docker/daemon.json:
              {"runtimes": {"sandbox": {"runtimeType": "io.containerd.sandbox.v1"}}}
            docker run --rm --runtime sandbox busybox echo hello

  Kubernetes, in /etc/containerd/config.toml
    containerd 1.x (version = 2), which then wants the default runtime named as well:
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.sandbox]
        runtime_type = "io.containerd.sandbox.v1"
    containerd 2.x (version = 3):
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.sandbox]
        runtime_type = "io.containerd.sandbox.v1"
    and in the cluster, for pods with runtimeClassName: sandbox
      apiVersion: node.k8s.io/v1
      kind: RuntimeClass
      metadata: {name: sandbox}
      handler: sandbox

Usage, as containerd calls it:
  containerd-shim-sandbox-v1 -namespace NS -address SOCKET -id ID [-bundle DIR] [-debug] start|delete
  containerd-shim-sandbox-v1 -v       version of the shim and of what is linked into it
  containerd-shim-sandbox-v1 -info    reads options from stdin, writes a RuntimeInfo protobuf message
  containerd-shim-sandbox-v1 --help   this text
`
