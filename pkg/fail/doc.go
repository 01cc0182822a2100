// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package fail has failpoints: places at which a test makes the shim fail, to check that nothing is left then. A build
// without the tag failpoints has none of them, not even their names: both functions inline to nothing.
//
// A failpoint is named operation.step, and stands once in the code. It comes after the step, so that the step has to be
// undone.
//
// With the tag, the variable SHIM_FAILPOINTS names a directory. In it a file with the name of a failpoint says what
// happens there, once: the first to reach the failpoint removes the file. So a test can set it while the shim runs. The
// file has one line:
//
//	error        the step fails, and the error names the failpoint
//	panic        the goroutine panics
//	kill         the process kills itself with SIGKILL
//	delay 50ms   the step takes that much longer
//	hang         the step ends when the file NAME.hang, which is made then, is removed
//
// The file log in the directory gets a line with name and action for each time that a failpoint is passed; the action
// is "-" if none was set.
package fail
