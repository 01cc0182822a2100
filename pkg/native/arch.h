// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// All that differs between processors. Where HAVE_PROGRAM is not defined, there is no program.

#include <linux/audit.h>
#include <linux/elf-em.h>

#if defined(__x86_64__)
#define HAVE_PROGRAM
#define NATIVE_ELF_MACHINE EM_X86_64
#define NATIVE_AUDIT_ARCH AUDIT_ARCH_X86_64

#ifdef CODE // in program.c
__asm__(".pushsection native, \"ax\", @progbits\n"
	".globl native_entry\n"
	"native_entry:\n"
	"	xor %ebp, %ebp\n"
	"	and $-16, %rsp\n"
	"	call native_main\n"
	"	ud2\n"
	".popsection\n");

CODE static inline long sys(long call, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(call), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
#endif
#else
#define NATIVE_ELF_MACHINE EM_NONE
#define NATIVE_AUDIT_ARCH 0
#endif
