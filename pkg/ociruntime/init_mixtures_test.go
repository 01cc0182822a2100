// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/shim/pkg/process"
)

// How many mixtures of variants are run, and by which seed; make test-inits sets them.
const (
	mixturesEnv    = "SHIM_TEST_INIT_MIXTURES"
	mixtureSeedEnv = "SHIM_TEST_INIT_SEED"
)

// A mixture is a base with two to six variants at once. Whatever comes of it, both ways have to come to the same.
func TestInit_MixturesAreAsLibcontainerMakesThem(t *testing.T) {
	count, err := strconv.Atoi(cmp.Or(os.Getenv(mixturesEnv), "12"))
	must(t, err)
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv(mixtureSeedEnv), "1"), 10, 64)
	must(t, err)
	launched, ran := 0, 0
	for i := range max(count/slowness(), 1) {
		t.Run(fmt.Sprintf("%s=%d/%d", mixtureSeedEnv, seed, i), func(t *testing.T) {
			mix := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // to be repeated
			base, all := initBases[mix.IntN(len(initBases))], initVariants(t)
			names := []string{base.name}
			var changes []func(*process.Config)
			for _, k := range mix.Perm(len(all))[:2+mix.IntN(5)] {
				if all[k].name == "no /dev" {
					continue // libcontainer fails where links to descriptors are in the root file system already
				}
				names, changes = append(names, all[k].name), append(changes, all[k].change)
			}
			t.Log(strings.Join(names, " + "))
			change := func(c *process.Config) {
				base.change(t, c)
				for _, f := range changes {
					f(c)
				}
			}
			want, _ := runInit(t, byLibcontainerOnly(), change)
			got, byLauncher := runInit(t, testRuntime, change)
			wantEqual(t, want, got)
			if got.Err == "" {
				ran++
			}
			if byLauncher {
				launched++
			}
		})
	}
	t.Logf("%d ran, %d of them by the launcher", ran, launched)
	if launched*2 < ran {
		t.Errorf("%d of %d by the launcher, want at least half", launched, ran)
	}
}
