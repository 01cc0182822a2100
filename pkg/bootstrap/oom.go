// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxOOMScoreAdj is OOM_SCORE_ADJ_MAX of include/uapi/linux/oom.h.
const maxOOMScoreAdj = 1000

// raiseOOMScore makes this process one point likelier to be killed for memory than parent: losing
// containerd would cost every container, losing a shim one pod. Raising needs no privilege; where the parent's score
// is below ours (proc_pid_oom_score_adj(5): lowering needs CAP_SYS_RESOURCE) the caller carries on without.
func raiseOOMScore(proc string, parent int) error {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(parent), "oom_score_adj"))
	if err != nil {
		return fmt.Errorf("read OOM score of the parent: %w", err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("read OOM score of the parent: %w", err)
	}
	score = min(score+1, maxOOMScoreAdj)
	if err := writeFile(filepath.Join(proc, "self", "oom_score_adj"), strconv.Itoa(score)); err != nil {
		return fmt.Errorf("set OOM score %d: %w", score, err)
	}
	return nil
}
