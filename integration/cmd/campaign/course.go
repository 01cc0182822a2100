// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sandbox.internal/shim/integration/campaign"
)

// course is how far a campaign has come. Its exported fields are the state file.
type course struct {
	Seed    uint64          `json:"seed"`
	Workers int             `json:"workers"`
	Mix     campaign.Mix    `json:"mix"`
	Next    []int           `json:"next"` // round of each worker
	Totals  campaign.Totals `json:"totals"`

	settings  settings
	began     time.Time
	before    campaign.Totals // of earlier runs
	ended     int             // workers
	shrinking int             // workers that look for fewer steps after a failure
	failing   map[int]bool    // which these are
}

// load reads the state file if there is one.
func load(s settings) (*course, error) {
	c := &course{
		Seed: s.seed, Workers: s.workers, Mix: s.mix, Next: make([]int, s.workers),
		Totals:   campaign.Totals{Runtime: s.runtime, Seeds: []uint64{s.seed}},
		settings: s, began: time.Now(), failing: map[int]bool{},
	}
	c.Totals.Continue(s.origin)
	if s.state == "" {
		return c, nil
	}
	text, err := os.ReadFile(s.state)
	if errors.Is(err, fs.ErrNotExist) {
		return c, os.MkdirAll(filepath.Dir(s.state), 0o755)
	}
	if err == nil {
		c.Totals.Origins = nil
		err = json.Unmarshal(text, c)
	}
	if err != nil {
		return nil, fmt.Errorf("-state: %w", err)
	}
	if c.Seed != s.seed || c.Workers != s.workers || c.Mix != s.mix || c.Totals.Runtime != s.runtime ||
		len(c.Next) != s.workers {
		return nil, fmt.Errorf("-state %s is of another campaign: seed %d, %d workers, mix %v, %s", s.state, c.Seed,
			c.Workers, &c.Mix, c.Totals.Runtime)
	}
	c.Totals.Continue(s.origin)
	c.before = c.Totals
	return c, nil
}

// save writes the state file. What it does not have yet is done again: the rounds that are under way.
func (c *course) save() error {
	c.Totals.Time = c.before.Time + time.Since(c.began)
	if c.settings.state == "" {
		return nil
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	name := c.settings.state
	if err := os.WriteFile(name+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// begin says what the campaign does.
func (c *course) begin() string {
	text := fmt.Sprintf("%s, seed %d, %d workers, mix %v", c.settings.runtime, c.Seed, c.Workers, &c.Mix)
	if c.before.Rounds > 0 {
		text += fmt.Sprintf("\ncontinues after %d rounds, %d operations", c.before.Rounds, c.before.Operations)
	}
	return text
}

// progress prints a line.
func (c *course) progress() {
	gone := time.Since(c.began)
	rate := func(before, now int) float64 { return float64(now-before) / gone.Seconds() }
	t := c.Totals
	text := fmt.Sprintf("%v: %d operations (%.0f/s), %d containers (%.1f/s), %d execs (%.0f/s), killed: %d shims, "+
		"%d containerd; %d violations", gone.Round(time.Second), t.Operations, rate(c.before.Operations, t.Operations),
		t.Containers, rate(c.before.Containers, t.Containers), t.Execs, rate(c.before.Execs, t.Execs), t.Shims, t.Daemons,
		t.Violations())
	fmt.Println(text)
}
