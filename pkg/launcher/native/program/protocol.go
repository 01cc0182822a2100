// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package program

// #include "arch.h"
// #include "program.h"
import "C"

// The protocol, which program.h describes.
const (
	Socket    = C.FD_SOCKET
	AuditArch = C.NATIVE_AUDIT_ARCH // AUDIT_ARCH_… of the processor, see seccomp(2)

	HeaderSize  = C.sizeof_struct_header
	StepSize    = C.sizeof_struct_step
	MessageSize = C.sizeof_struct_message

	OpCall     = C.OP_CALL
	OpFork     = C.OP_FORK
	OpWait     = C.OP_WAIT
	OpHold     = C.OP_HOLD
	OpSignals  = C.OP_SIGNALS
	OpInode    = C.OP_INODE
	OpMode     = C.OP_MODE
	OpBelow    = C.OP_BELOW
	OpMake     = C.OP_MAKE
	OpUserns   = C.OP_USERNS
	OpNull     = C.OP_NULL
	OpStdio    = C.OP_STDIO
	OpHome     = C.OP_HOME
	OpCheckCWD = C.OP_CHECK_CWD
	OpLookup   = C.OP_LOOKUP
	OpExec     = C.OP_EXEC
	OpSleep    = C.OP_SLEEP
	OpInit     = C.OP_INIT

	MessagePID      = C.MESSAGE_PID
	MessageInCgroup = C.MESSAGE_IN_CGROUP
	MessageWaiting  = C.MESSAGE_WAITING
	MessageFailed   = C.MESSAGE_FAILED
	MessageNotRun   = C.MESSAGE_NOT_RUN
	MessageResumed  = C.MESSAGE_RESUMED

	LookupStat = C.LOOKUP_STAT
	LookupNone = C.LOOKUP_NONE
	LookupDot  = C.LOOKUP_DOT
)
