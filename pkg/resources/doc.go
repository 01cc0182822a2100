// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package resources knows the OCI runtime specification's linux.resources (config-linux.md, Control groups): which values
// are allowed, which control files of the kernel each field is written to, and what an update adds to what was asked before.
//
// It writes nothing and has no goroutine and no lock: its functions depend on their arguments alone, but for ReadHost,
// which reads what the machine has.
//
// Promises: Check refuses only what the kernel or libcontainer would refuse later on every machine like h, or would
// silently turn into something else; what clients send for "not set" (no value, 0, an empty text) passes. Each refusal
// names the field as config.json has it, the value and what is allowed, and is an errdefs.ErrInvalidArgument.
package resources
