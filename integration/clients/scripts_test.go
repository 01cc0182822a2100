// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"maps"
	"os"
	"path/filepath"
)

// writeScripts writes programs for the scripts of cases into the directory bin: those of a kind of client, and those
// of all.
func writeScripts(bin string, scripts map[string]string) error {
	all := map[string]string{"await": awaitScript, "rest": restScript}
	maps.Copy(all, scripts)
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

const awaitScript = `#!/bin/sh
want=$1
shift
end=$(($(date +%s) + ${PATIENCE:-60}))
until [ "$("$@" 2>&1)" = "$want" ]; do
	if [ $(date +%s) -gt $end ]; then
		echo "await '$want': $* says: $("$@" 2>&1)" >&2
		exit 1
	fi
	sleep 0.05
done
`

const restScript = `#!/bin/sh
sleep $(($1 * SLOWNESS))
`
