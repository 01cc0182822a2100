// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"strconv"
	"strings"
	"time"

	"sandbox.internal/shim/pkg/settings"
)

// config says when a container sleeps.
type config struct {
	after   time.Duration
	cpu     float64 // CPUs that it uses at most while it counts as idle
	reclaim bool
	pod     bool // all containers of its pod that have it sleep and wake together
}

const (
	none      = "none"
	allowed   = "after=TIME, and with commas cpu=PERCENT%, reclaim=on or off, and pod, such as after=30s,cpu=1%"
	minAfter  = time.Second
	usualCPU  = 0.01
	mostCPUs  = 100 // a larger share is probably a typo
	onReclaim = "on"
)

func parse(v settings.Value) (c config, err error) {
	c = config{cpu: usualCPU, reclaim: true}
	seen := map[string]bool{}
	for item := range strings.SplitSeq(v.Text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		if seen[key] {
			return c, v.Refuse(allowed + ", each once")
		}
		seen[key] = true
		var valid bool
		switch key {
		case "after":
			c.after, err = time.ParseDuration(value)
			valid = err == nil && c.after >= minAfter && c.after <= settings.MaxTimeout
		case "cpu":
			var percent float64
			number, isPercent := strings.CutSuffix(value, "%")
			percent, err = strconv.ParseFloat(number, 64)
			valid = err == nil && isPercent && percent > 0 && percent <= mostCPUs*100
			c.cpu = percent / 100
		case "reclaim":
			c.reclaim, valid = value == onReclaim, value == onReclaim || value == "off"
		case "pod":
			c.pod, valid = true, value == ""
		}
		if !valid {
			return c, v.Refuse(allowed + "; TIME is from 1s to 24h")
		}
	}
	if !seen["after"] {
		return c, v.Refuse(allowed)
	}
	return c, nil
}
