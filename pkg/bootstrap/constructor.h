// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

#include <stdint.h>
#include <unistd.h>

// CONSTRUCTOR has f(argc, argv, env) called before the Go runtime begins; a lower order is earlier. glibc gives a
// constructor the program's arguments, and musl does not: there they are found before the environment, with their
// number (System V ABI, "Process Initialization"). A program with musl is static, so nobody was earlier and moved the
// environment.
#ifdef __GLIBC__
#define CONSTRUCTOR(order, f) \
	__attribute__((constructor(order))) static void constructor_of_##f(int argc, char **argv, char **env) \
	{ \
		f(argc, argv, env); \
	}
#else
#define CONSTRUCTOR(order, f) \
	__attribute__((constructor(order))) static void constructor_of_##f(void) \
	{ \
		int argc = 0; \
		char **argv = environ - 1; \
		for (; (intptr_t)argv[-1] != argc; argc++) \
			argv--; \
		f(argc, argv, environ); \
	}
#endif
