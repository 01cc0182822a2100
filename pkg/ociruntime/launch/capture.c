// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "capture.h"

// It must not run in Go: the thread that waits for the answer may hold up a garbage collection until it comes.
int capture_filter(int listener, int ready, struct capture *c)
{
	const uint64_t one = 1;
	if (write(ready, &one, sizeof one) < 0)
		return errno;
	for (;;) {
		struct pollfd p = {.fd = listener, .events = POLLIN};
		if (poll(&p, 1, -1) < 0) {
			if (errno == EINTR)
				continue;
			return errno;
		}
		if (!(p.revents & POLLIN))
			return 0; // the thread is gone
		struct seccomp_notif call;
		memset(&call, 0, sizeof call);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0) {
			if (errno == EINTR || errno == ENOENT)
				continue;
			return errno;
		}
		struct seccomp_notif_resp answer = {.id = call.id};
		// The addresses are those of our own process.
		const struct sock_fprog *program = (const struct sock_fprog *)call.data.args[2];
		free(c->program);
		c->flags = call.data.nr == SYS_seccomp ? call.data.args[1] : 0;
		c->length = program->len;
		c->program = malloc(program->len * sizeof *program->filter);
		if (c->program)
			memcpy(c->program, program->filter, program->len * sizeof *program->filter);
		else
			answer.error = -ENOMEM;
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) < 0 && errno != ENOENT)
			return errno;
	}
}
