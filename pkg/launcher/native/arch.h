// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Everything that differs between processors. If HAVE_PROGRAM is not defined, there is no program.

#include <linux/audit.h>
#include <linux/elf-em.h>

#if defined(__x86_64__)
#define HAVE_PROGRAM
#define NATIVE_ELF_MACHINE EM_X86_64
#define NATIVE_AUDIT_ARCH AUDIT_ARCH_X86_64

#ifdef CODE // in program.c
#define ENTRY(name, main) \
	__asm__(".pushsection native, \"ax\", @progbits\n" \
		".globl " #name "\n" \
		#name ":\n" \
		"	xor %ebp, %ebp\n" \
		"	mov %rsp, %rdi\n" \
		"	and $-16, %rsp\n" \
		"	call " #main "\n" \
		"	ud2\n" \
		".popsection\n")

// The address of a function here, wherever the code lies.
#define ADDRESS(to, function) __asm__("lea " #function "(%%rip), %0" : "=r"(to))

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
#elif defined(__aarch64__) && defined(__AARCH64EL__)
#define HAVE_PROGRAM
#define NATIVE_ELF_MACHINE EM_AARCH64
#define NATIVE_AUDIT_ARCH AUDIT_ARCH_AARCH64

#ifdef CODE
// The kernel has aligned the stack.
#define ENTRY(name, main) \
	__asm__(".pushsection native, \"ax\", @progbits\n" \
		".globl " #name "\n" \
		#name ":\n" \
		"	mov x29, xzr\n" \
		"	mov x30, xzr\n" \
		"	mov x0, sp\n" \
		"	bl " #main "\n" \
		"	brk #0\n" \
		".popsection\n")

#define ADDRESS(to, function) __asm__("adr %0, " #function : "=r"(to))

CODE static inline long sys(long call, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = call;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#endif
#else
#define NATIVE_ELF_MACHINE EM_NONE
#define NATIVE_AUDIT_ARCH 0
#endif
