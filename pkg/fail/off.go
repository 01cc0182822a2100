// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package fail

// At is a failpoint.
func At(string) error { return nil }

// After is a failpoint after a step that returned err. It is passed if err is nil.
func After(_ string, err error) error { return err }
