// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// The program of a pod's pause container: holds the pod's namespaces, collects what has died in its pid namespace, and
// ends when it is told to.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig)
{
	(void)sig;
	_exit(0);
}

static void reap(int sig)
{
	(void)sig;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
	struct sigaction ends = {.sa_handler = end}, reaps = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};

	if (sigaction(SIGTERM, &ends, NULL) || sigaction(SIGINT, &ends, NULL) || sigaction(SIGCHLD, &reaps, NULL))
		return 1;
	for (;;)
		pause();
}
