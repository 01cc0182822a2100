#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Runs govulncheck, which is given as a command, and fails if it finds a vulnerability in code that is called. If the
# database cannot be reached, nothing is checked: this prints a warning and succeeds, as the code may be fine.
set -uo pipefail

output=$("$@" 2>&1)
status=$?
printf '%s\n' "$output"
if [ $status -ne 0 ] && grep -q 'fetching vulnerabilities: .*vuln\.go\.dev' <<<"$output"; then
	echo "NOT CHECKED for known vulnerabilities: the database at vuln.go.dev cannot be reached from here." >&2
	exit 0
fi
exit $status
