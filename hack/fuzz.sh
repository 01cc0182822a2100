#!/bin/bash
# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# Runs all fuzz targets of the shim and of sandboxctl, one after the other, and fails if one finds an input that fails:
#
#   hack/fuzz.sh TIME TAGS EXPRESSION [TOTALS [PAGE]]
#
# TIME, such as 90s or 5m, is for all targets together. EXPRESSION chooses among names such as pkg/event.FuzzDecode. TOTALS is a file to
# which this run is added; a line has target, executions, seconds, and FAILED if an input failed. The sum is
# written into the section `fuzz` of PAGE.
set -euo pipefail
tags=$2 expression=$3 totals=${4:-} page=${5:-}
case $1 in *s) seconds=${1%s} ;; *m) seconds=$((${1%m} * 60)) ;; *h) seconds=$((${1%h} * 3600)) ;; *) echo "$1: want a time such as 90s, 5m or 2h" >&2; exit 2 ;; esac
root=$(cd "$(dirname "$0")/.." && pwd)
cache=$(go env GOCACHE)/fuzz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The engine reads the counters of all instrumented packages after each execution: so only the package is instrumented, and
# of its imports those of this tree and those that parse. `go test -fuzz` instruments all that are linked.
parsers='sandbox[.]internal/shim/.*|encoding/json|github.com/go-json-experiment/json|net/url|github.com/pelletier/go-toml/v2|google.golang.org/protobuf/encoding/protowire|github.com/opencontainers/runc/libcontainer/specconv'

cd "$root"
mapfile -t targets < <(grep -rhoE --include='*_test.go' --with-filename '^func Fuzz\w+' pkg cmd |
    sed -E 's|/[^/]*:func |.|' | sort | grep -E -- "$expression")
[ ${#targets[@]} -gt 0 ] || { echo "no target matches $expression" >&2; exit 1; }
each=$((seconds / ${#targets[@]}))
failed=0
for target in "${targets[@]}"; do
    echo "== $target"
    dir=${target%.*} binary=$work/${target//\//-}
    (
        cd "$dir"
        mapfile -t instrumented < <(go list -tags "$tags" -f '{{.ImportPath}}{{range .Imports}}{{println}}{{.}}{{end}}' | grep -xE "$parsers")
        instrumented=("${instrumented[@]/%/=-d=libfuzzer}")
        go test -c -tags "$tags" "${instrumented[@]/#/-gcflags=}" -o "$binary" .
    ) 2>&1
    status=0
    # One processor for each worker, and a heap that fits into its caches: twice as many executions.
    (cd "$dir" && GOMAXPROCS=1 GOGC=50 "$binary" -test.run='^$' -test.fuzz="^${target##*.}\$" \
        -test.fuzztime=$((each > 2 ? each : 2))s -test.fuzzminimizetime=1s -test.parallel="$(nproc)" \
        -test.fuzzcachedir="$cache/sandbox.internal/shim/$dir") >"$work/log" 2>&1 || status=$?
    grep -v '^fuzz: elapsed' "$work/log" || :
    # The engine may end late, which is no failure of an input (go.dev/issue/75804).
    found=
    if [ $status != 0 ] && ! grep -v '^FAIL' "$work/log" | tail -n 1 | grep -qx ' *context deadline exceeded'; then
        found=FAILED failed=1
    fi
    # The last line of progress counts, such as "fuzz: elapsed: 1m3s, execs: 680218 (118402/sec), …".
    awk -v target="$target" -v found="$found" '/^fuzz: elapsed: .* execs: / {
            time = $3; execs = $5; seconds = 0
            while (match(time, /^[0-9.]+[hms]/)) {
                seconds += substr(time, 1, RLENGTH - 1) * (time ~ /^[0-9.]+h/ ? 3600 : time ~ /^[0-9.]+m/ ? 60 : 1)
                time = substr(time, RLENGTH + 1)
            }
        }
        END { print target, execs + 0, seconds + 0, found }' "$work/log" | tee -a "$work/run"
    rm -f "$binary"
done

[ -n "$totals" ] || totals=$work/totals
touch "$totals"
awk '{ execs[$1] += $2; seconds[$1] += $3; if ($4) found[$1] = $4 }
    END { for (t in execs) print t, execs[t], seconds[t], found[t] }' "$totals" "$work/run" | sort >"$work/sum"
cp "$work/sum" "$totals"
awk 'function spoken(t) { match(t, /[.][^.]*$/); return substr(t, RSTART + 1) " of `" substr(t, 1, RSTART - 1) "`" }
    { execs += $2; seconds += $3; if (!least || $2 < fewest) { least = $1; fewest = $2 } }
    $4 { found = found (found ? ", " : "") spoken($1) }
    END { printf "%d targets, %.0f executions in %.1f hours. The fewest had %s: %d. Targets that found an input that failed: %s.\n",
            NR, execs, seconds / 3600, spoken(least), fewest, found ? found : "none" }' "$totals" |
    sed -E ':again; s/\b([0-9]+)([0-9]{3})\b/\1,\2/; t again' | tee "$work/sentence"
[ -z "$page" ] || sed -i -e '/<!-- fuzz:begin -->/,/<!-- fuzz:end -->/{//!d}' -e "/<!-- fuzz:begin -->/r $work/sentence" "$page"
exit $failed
