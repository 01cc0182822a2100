// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// `start` where a shim can take the container: the shim is asked by Join of its own service (pkg/service/inspect.proto),
// and its answer is printed, without the Go runtime. Whatever fails here, Go does: it finds stdin as it was
// (docs/decisions/0022-pods-in-one-process.md).

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "detach.h"

// text is bytes with a length.
struct text {
	const char *at;
	size_t size;
};

static struct text of(const char *s)
{
	return (struct text){ s, s ? strlen(s) : 0 };
}

// --- the request ---

enum { LONGEST_INPUT = 60 << 10, LONGEST_CONFIG = 1 << 20 }; // the first fits into a pipe

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8
#endif

// read_all reads a file to its end. It returns false if that has more bytes than there is room, or for an error.
static bool read_all(int file, char *to, size_t room, size_t *size)
{
	for (*size = 0; *size < room;) {
		ssize_t n = read(file, to + *size, room - *size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n == 0;
		*size += (size_t)n;
	}
	return false;
}

// give_back makes stdin have the bytes that were read, and then what was not. What fits into a pipe needs no memory file,
// which a machine may refuse (vm.memfd_noexec).
static bool give_back(struct text input, bool whole)
{
	int ends[2];
	if (whole && pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
		bool ok = write(ends[1], input.at, input.size) == (ssize_t)input.size && dup2(ends[0], STDIN_FILENO) == STDIN_FILENO;
		close(ends[0]);
		close(ends[1]);
		if (ok)
			return true; // else the user has too many pipes, and gets small ones
	}
	int file = memfd_create("stdin", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
	if (file < 0 && errno == EINVAL) // Linux before 6.3
		file = memfd_create("stdin", MFD_CLOEXEC);
	if (file < 0)
		return false;
	bool ok = write(file, input.at, input.size) == (ssize_t)input.size;
	for (char more[4096]; ok && !whole;) {
		ssize_t n = read(STDIN_FILENO, more, sizeof more);
		if (n == 0)
			break;
		ok = n > 0 ? write(file, more, (size_t)n) == n : errno == EINTR;
	}
	ok = ok && lseek(file, 0, SEEK_SET) == 0 && dup2(file, STDIN_FILENO) == STDIN_FILENO;
	close(file);
	return ok;
}

// mix adds bytes to a hash (FNV-1a, 64 bits), and their number.
static uint64_t mix(uint64_t hash, struct text t)
{
	const uint64_t prime = 0x100000001b3;
	for (size_t i = 0; i < t.size; i++)
		hash = (hash ^ (unsigned char)t.at[i]) * prime;
	return (hash ^ t.size) * prime;
}

// program_of writes which program a process executes.
static void program_of(const char *process, char *to, size_t room)
{
	char path[64];
	struct stat st = { 0 };
	snprintf(path, sizeof path, "/proc/%s/exe", process);
	stat(path, &st); // of one that is gone all is 0
	snprintf(to, room, "%ju:%ju:%jd.%ld", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino, (intmax_t)st.st_ctim.tv_sec,
		 st.st_ctim.tv_nsec);
}

// digest is the same for requests that differ only in the id of the container: a shim's answer to one is right for all.
static uint64_t digest(int argc, char **argv, struct text id, struct text input)
{
	uint64_t hash = 0xcbf29ce484222325;
	for (int i = 0; i < argc; i++)
		if (i == 0 || strcmp(argv[i - 1], "-id") != 0)
			hash = mix(hash, of(argv[i]));
	// containerd 2.3 and later repeat the id in field 1 of their message (pkg/bootstrap, parseRequest).
	if (input.size > id.size + 1 && input.at[0] == 0x0a && (unsigned char)input.at[1] == id.size &&
	    memcmp(input.at + 2, id.at, id.size) == 0)
		input = (struct text){ input.at + 2 + id.size, input.size - 2 - id.size };
	hash = mix(hash, input);
	static const char *const names[] = { "TTRPC_ADDRESS", "MAX_SHIM_VERSION", "SCHED_CORE" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		hash = mix(hash, of(getenv(names[i])));
	char caller[16], program[128];
	snprintf(caller, sizeof caller, "%d", getppid());
	program_of(caller, program, sizeof program);
	return mix(hash, of(program));
}

// find_pod finds the id of the pod in config.json. A quote within a string of JSON has a backslash before it, so only a
// key can match. It returns false if Go has to look: another annotation groups containers, or there is more than what
// CRI writes.
static bool find_pod(char *config, size_t size, struct text *pod)
{
	static const char group[] = "runc.v2.group", word[] = "sandbox-id", key[] = "\"io.kubernetes.cri.sandbox-id\":\"";
	const char *const end = config + size;
	*pod = (struct text){ 0 };
	if (memmem(config, size, group, sizeof group - 1))
		return false;
	char *once = memmem(config, size, word, sizeof word - 1);
	if (!once)
		return true;
	char *value = memmem(config, size, key, sizeof key - 1);
	if (!value || once < value || memmem(once + 1, (size_t)(end - once) - 1, word, sizeof word - 1))
		return false;
	value += sizeof key - 1;
	char *quote = memchr(value, '"', (size_t)(end - value));
	if (!quote)
		return false;
	*quote = 0;
	*pod = (struct text){ value, (size_t)(quote - value) };
	const char *allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	return value[0] != '.' && pod->size > 0 && pod->size < 128 && strspn(value, allowed) == pod->size;
}

// --- the call ---

// append writes a field of a protobuf message whose value is bytes, all shorter than 16 KiB.
static void append(char **to, unsigned number, struct text value)
{
	*(*to)++ = (char)(number << 3 | 2);
	*(*to)++ = (char)(value.size | 0x80);
	*(*to)++ = (char)(value.size >> 7);
	memcpy(*to, value.at, value.size);
	*to += value.size;
}

static bool varint(struct text *t, uint64_t *value)
{
	*value = 0;
	for (unsigned shift = 0; t->size > 0 && shift < 64; shift += 7) {
		unsigned char c = (unsigned char)*t->at++;
		t->size--;
		*value |= (uint64_t)(c & 0x7f) << shift;
		if (c < 0x80)
			return true;
	}
	return false;
}

// field returns the last value of a field that has bytes; without the field the size is 0.
static struct text field(struct text message, unsigned number)
{
	struct text found = { 0 };
	for (uint64_t tag, value; varint(&message, &tag) && varint(&message, &value);) {
		if ((tag & 7) == 0)
			continue; // a number
		if ((tag & 7) != 2 || value > message.size)
			break; // of no message of ours
		if (tag >> 3 == number)
			found = (struct text){ message.at, (size_t)value };
		message = (struct text){ message.at + value, message.size - (size_t)value };
	}
	return found;
}

// connect_to connects to a socket, whose answers may take a second.
static int connect_to(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval most = { .tv_sec = 1 };
	if (strlen(path) >= sizeof address.sun_path)
		return -1;
	strcpy(address.sun_path, path);
	int conn = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (conn < 0)
		return -1;
	setsockopt(conn, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most); // fails for no socket
	setsockopt(conn, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
	if (connect(conn, (struct sockaddr *)&address, sizeof address) == 0)
		return conn;
	close(conn);
	return -1;
}

enum { HEADER = 10, LONGEST_ANSWER = 8 << 10 };

// call makes a call of ttrpc (PROTOCOL.md) and returns the payload of its answer; without bytes after a failure.
static struct text call(int conn, struct text request, char answer[LONGEST_ANSWER])
{
	const struct text none = { 0 };
	char frame[8 << 10], *end = frame + HEADER;
	append(&end, 1, of("io.containerd.sandbox.v1.Inspect"));
	append(&end, 2, of("Join"));
	append(&end, 3, request);
	uint32_t size = (uint32_t)(end - frame - HEADER);
	const char head[HEADER] = { (char)(size >> 24), (char)(size >> 16), (char)(size >> 8), (char)size, 0, 0, 0, 1, 1, 0 };
	memcpy(frame, head, HEADER);
	if (send(conn, frame, HEADER + size, MSG_NOSIGNAL) != (ssize_t)(HEADER + size))
		return none;
	size_t have = 0, want = HEADER;
	while (have < want) {
		ssize_t n = recv(conn, answer + have, want - have, 0);
		if (n <= 0)
			return none;
		have += (size_t)n;
		if (have == HEADER) {
			const unsigned char *h = (const unsigned char *)answer;
			want = HEADER + ((size_t)h[0] << 24 | h[1] << 16 | h[2] << 8 | h[3]);
			if (want > LONGEST_ANSWER)
				return none;
		}
	}
	struct text response = { answer + HEADER, have - HEADER };
	bool failed = field(response, 1).size > 0; // the status of success is empty
	return failed || answer[8] != 2 ? none : field(response, 2);
}

// record writes the address of the shim into the bundle, as Go does (socket.go).
static bool record(struct text address)
{
	int file = open(".address", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (file < 0)
		return false;
	bool ok = write(file, address.at, address.size) == (ssize_t)address.size;
	close(file);
	return ok && rename(".address", "address") == 0;
}

// ask has the shim at a socket take the container, prints its answer, and exits.
static void ask(const char *socket, struct text id, struct text pod, uint64_t digest)
{
	char bundle[PATH_MAX], program[128], key[17], request[PATH_MAX + 1024], *end = request, answer[LONGEST_ANSWER];
	int conn = connect_to(socket);
	if (conn < 0)
		return;
	if (getcwd(bundle, sizeof bundle)) {
		program_of("self", program, sizeof program);
		snprintf(key, sizeof key, "%016jx", (uintmax_t)digest);
		append(&end, 1, id);
		append(&end, 2, pod);
		append(&end, 3, of(bundle));
		append(&end, 4, of(key));
		append(&end, 5, of(program));
		struct text granted = call(conn, (struct text){ request, (size_t)(end - request) }, answer);
		struct text text = field(granted, 1), address = field(granted, 2);
		if (text.size && address.size && record(address))
			_exit(write(STDOUT_FILENO, text.at, text.size) == (ssize_t)text.size ? 0 : 1);
	}
	close(conn);
}

// address_in reads the file with the address of the shim of a pod, from its bundle, which lies beside this one.
static bool address_in(struct text pod, char *socket, size_t room)
{
	char path[PATH_MAX];
	static const char scheme[] = "unix://";
	size_t size;
	snprintf(path, sizeof path, "../%s/address", pod.at);
	int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (file < 0)
		return false;
	bool ok = read_all(file, socket, room, &size) && size > sizeof scheme && memcmp(socket, scheme, sizeof scheme - 1) == 0;
	close(file);
	if (ok) {
		socket[size] = 0;
		memmove(socket, socket + sizeof scheme - 1, size - sizeof scheme + 2);
	}
	return ok;
}

void answer_start(int argc, char **argv)
{
	struct text id = { 0 };
	char socket[sizeof ((struct sockaddr_un *)0)->sun_path + 16];
	if (argc < 4 || strcmp(argv[argc - 1], "start") != 0 || isatty(STDIN_FILENO)) // no argument may follow the action
		return;
	for (int i = 1; i < argc - 2; i++)
		if (strcmp(argv[i], "-id") == 0)
			id = of(argv[i + 1]);
	if (!id.size || id.size >= 128)
		return;
	// The process may become the shim, so the memory is given back.
	char *input = mmap(NULL, LONGEST_INPUT + LONGEST_CONFIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (input == MAP_FAILED)
		return;
	char *config = input + LONGEST_INPUT;
	struct text in = { input, 0 }, pod;
	bool whole = read_all(STDIN_FILENO, input, LONGEST_INPUT, &in.size);
	if (whole) {
		detached.digest = digest(argc, argv, id, in);
		size_t size = 0;
		int file = open("config.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		bool known = file < 0 || read_all(file, config, LONGEST_CONFIG, &size); // a sandbox has none
		close(file);
		if (known && find_pod(config, size, &pod)) {
			if (!pod.size || (pod.size == id.size && memcmp(pod.at, id.at, id.size) == 0)) {
				snprintf(socket, sizeof socket, SHIM_LINK, (uintmax_t)detached.digest);
				ask(socket, id, id, detached.digest);
			} else if (address_in(pod, socket, sizeof socket - 1)) {
				ask(socket, id, pod, detached.digest);
			}
		}
	}
	if (in.size && !give_back(in, whole)) {
		dprintf(STDERR_FILENO, "start: keep what was read from stdin: %s", strerror(errno));
		_exit(1);
	}
	munmap(input, LONGEST_INPUT + LONGEST_CONFIG);
}
