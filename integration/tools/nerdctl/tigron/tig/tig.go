// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package tig stands in for the one of nerdctl's tests that the program is linked with, which the module proxy lacks.
package tig

// T is the methods of testing.T that nerdctl's functions for tests call.
type T interface {
	Error(args ...any)
	Fail()
	FailNow()
	Fatal(args ...any)
	Helper()
	Log(args ...any)
	Name() string
	Skip(args ...any)
	TempDir() string
}
