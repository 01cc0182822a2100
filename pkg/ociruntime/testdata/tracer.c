// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Traces every process that appears in its PID namespace as early as it can, and reports what each may do that the
// tracer may not. exec_trace_test.go runs it as the init of a container.

#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

struct rights {
	unsigned long long permitted, effective, bounding;
	int no_new_privs, seccomp, filters;
};

static int read_rights(int pid, struct rights *r)
{
	char path[64], line[512];
	int found = 0;
	snprintf(path, sizeof path, "/proc/%d/status", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		return 0;
	while (fgets(line, sizeof line, f))
		found += sscanf(line, "CapPrm: %llx", &r->permitted) == 1 || sscanf(line, "CapEff: %llx", &r->effective) == 1 ||
			 sscanf(line, "CapBnd: %llx", &r->bounding) == 1 || sscanf(line, "NoNewPrivs: %d", &r->no_new_privs) == 1 ||
			 sscanf(line, "Seccomp: %d", &r->seccomp) == 1 || sscanf(line, "Seccomp_filters: %d", &r->filters) == 1;
	fclose(f);
	return found == 6;
}

static void read_cgroups(int pid, char text[4096])
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
	FILE *f = fopen(path, "r");
	text[f ? fread(text, 1, 4095, f) : 0] = 0;
	if (f)
		fclose(f);
}

int main(void)
{
	struct rights own, its;
	char own_cgroups[4096], its_cgroups[4096];
	read_cgroups(getpid(), own_cgroups);
	setvbuf(stdout, 0, _IOLBF, 0);
	if (!read_rights(getpid(), &own))
		return 1;
	printf("ready\n");
	for (int last = getpid();;) {
		for (int pid = last + 1; pid < last + 64; pid++) {
			if (ptrace(PTRACE_SEIZE, pid, 0, 0) < 0)
				continue;
			last = pid;
			int status;
			if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) < 0 || waitpid(pid, &status, __WALL) < 0 || !WIFSTOPPED(status))
				continue;
			int whole = read_rights(pid, &its);
			read_cgroups(pid, its_cgroups);
			ptrace(PTRACE_DETACH, pid, 0, 0);
			if (!whole)
				continue;
			unsigned long long more = (its.permitted | its.effective | its.bounding) &
						  ~(own.permitted | own.effective | own.bounding);
			if (more || its.no_new_privs < own.no_new_privs || its.seccomp < own.seccomp || its.filters < own.filters)
				printf("excess: capabilities %llx no_new_privs %d seccomp %d filters %d\n", more, its.no_new_privs, its.seccomp, its.filters);
			else if (strcmp(its_cgroups, own_cgroups))
				printf("excess: other cgroups\n");
			else
				printf("traced\n");
			break;
		}
	}
}
