// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

func TestLog_HasWholeLinesAndPartsOfLongOnes(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		// 16 KiB is CRI's longest line; the second is that and a little more, the last has no end.
		c := p.run("c", []string{"sh", "-c", `echo short; head -c 17000 /dev/zero | tr '\0' x; echo; printf end`})
		c.wantExit(0)
		want := "short\n" + strings.Repeat("x", 17000) + "\nend"
		harness.Eventually(e, "all of the output", func() error {
			if got := c.log(); got != want {
				return fmt.Errorf("log has %d bytes, want %d", len(got), len(want))
			}
			return nil
		})
		if got := strings.Count(c.rawLog(), " stdout P "); got != 2 {
			e.Errorf("log has %d partial lines, want 2", got)
		}
		p.remove()
	})
}

func TestLog_IsReopenedAndNoLineIsLost(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		lines := harness.Fewer(400)
		c := p.run("c", []string{
			"sh", "-c",
			fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "line $i"; i=$((i+1)); usleep 2000; done`, lines),
		})
		c.wantLog("line 20\n")
		path := filepath.Join(p.Config.GetLogDirectory(), c.config.GetLogPath())
		var rotated []string
		for i := range 3 {
			name := fmt.Sprintf("%s.%d", path, i)
			e.must(os.Rename(path, name), "rotate the log")
			_, err := e.daemon.Runtime.ReopenContainerLog(e.ctx,
				&runtimeapi.ReopenContainerLogRequest{ContainerId: c.id})
			e.must(err, "reopen the log")
			rotated = append(rotated, name)
		}
		c.wantExit(0)
		c.wantLog(fmt.Sprintf("line %d\n", lines-1))
		var all strings.Builder
		for _, name := range append(rotated, path) {
			text, err := os.ReadFile(name)
			e.must(err, "read a log")
			all.WriteString(plain(string(text)))
		}
		var want strings.Builder
		for i := range lines {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		if all.String() != want.String() {
			e.Errorf("the logs have %d lines, want %d in order", strings.Count(all.String(), "\n"), lines)
		}
		p.remove()
	})
}
