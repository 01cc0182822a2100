// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

/*
#include "program.h"
*/
import "C"

import "unsafe"

// code is the launcher program, that of program_amd64.c, and where it begins in that. The linker names the ends.
func code() (program []byte, entry uintptr) {
	start := unsafe.Pointer(&C.__start_launcher)
	program = C.GoBytes(start, C.int(uintptr(unsafe.Pointer(&C.__stop_launcher))-uintptr(start)))
	return program, uintptr(unsafe.Pointer(&C.launcher_entry)) - uintptr(start)
}
