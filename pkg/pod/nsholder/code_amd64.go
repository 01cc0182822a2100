// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package nsholder

/*
#include "program.h"
*/
import "C"

import "unsafe"

// code is the holder program, that of program_amd64.c, and where it begins in that. The linker names the ends.
func code() (program []byte, entry uintptr) {
	start := unsafe.Pointer(&C.__start_holder)
	program = C.GoBytes(start, C.int(uintptr(unsafe.Pointer(&C.__stop_holder))-uintptr(start)))
	return program, uintptr(unsafe.Pointer(&C.holder_entry)) - uintptr(start)
}
