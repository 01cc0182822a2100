// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// result is what one target did, in one run or in several.
type result struct {
	Executions uint64
	Seconds    float64
	New        int  // inputs that widened the coverage
	Corpus     int  // all such inputs that are kept, with the seeds
	Runs       int  // of the target
	Found      bool `json:",omitempty"` // an input that failed
}

// lateEnd is what the engine of Go 1.26 gives as a failure if its time ends while a worker is at work
// (go.dev/issue/75804). The failure of an input ends with where the input was written.
const lateEnd = "context deadline exceeded"

// readAll reads the engine's output, and passes on what is not about its progress. late says that what failed, if
// something did, is the engine's end.
func (r *result) readAll(output io.Reader, rest io.Writer) (late bool) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		line := lines.Text()
		r.read(line)
		if !strings.HasPrefix(line, "fuzz: elapsed") && line != "PASS" {
			fmt.Fprintln(rest, line)
		}
		if text := strings.TrimSpace(line); text != "FAIL" {
			late = text == lateEnd
		}
	}
	return late
}

// progress is the line that the fuzzing engine prints every three seconds and at the end (internal/fuzz,
// coordinator.logStats).
var progress = regexp.MustCompile(
	`^fuzz: elapsed: ([^,]+), execs: (\d+) \(\d+/sec\)(?:, new interesting: (\d+) \(total: (\d+)\))?`)

// read takes the numbers of a line of the engine's output, if it has some. The last line counts.
func (r *result) read(line string) {
	m := progress.FindStringSubmatch(line)
	if m == nil {
		return
	}
	// Both are digits by the expression; the time is in Go's form.
	r.Executions, _ = strconv.ParseUint(m[2], 10, 64)
	if elapsed, err := time.ParseDuration(m[1]); err == nil {
		r.Seconds = elapsed.Seconds()
	}
	if m[3] != "" {
		r.New, _ = strconv.Atoi(m[3])
		r.Corpus, _ = strconv.Atoi(m[4])
	}
}

// add adds a later run.
func (r result) add(later result) result {
	return result{
		Executions: r.Executions + later.Executions, Seconds: r.Seconds + later.Seconds, New: r.New + later.New,
		Corpus: cmp.Or(later.Corpus, r.Corpus), Runs: r.Runs + later.Runs, Found: r.Found || later.Found,
	}
}

// results are those of targets by name.
type results map[string]result

func (r results) sum() result {
	var sum result
	for _, one := range r {
		corpus := sum.Corpus + one.Corpus
		sum = sum.add(one)
		sum.Corpus = corpus
	}
	return sum
}

func (r results) print(to io.Writer) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, one result) {
		found := ""
		if one.Found {
			found = "FAILED"
		}
		rate := float64(one.Executions) / max(one.Seconds, 1)
		fmt.Fprintf(w, "%d\t%.0f/s\t%.0fs\t%d new\t%d kept\t%s\t  %s\n",
			one.Executions, rate, one.Seconds, one.New, one.Corpus, found, name)
	}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		row(name, r[name])
	}
	row(fmt.Sprintf("%d targets", len(r)), r.sum())
	_ = w.Flush() // to a terminal or a file; there is nothing to do about it
}

// sentences say what all targets did together, for a page.
func (r results) sentences() string {
	var found []string
	least := ""
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if r[name].Found {
			found = append(found, spoken(name))
		}
		if least == "" || r[name].Executions < r[least].Executions {
			least = name
		}
	}
	if len(found) == 0 {
		found = []string{"none"}
	}
	sum, p := r.sum(), message.NewPrinter(language.English)
	return p.Sprintf("%d targets, %d executions in %.1f hours. The fewest had %s: %d. "+
		"Targets that found an input that failed: %s.\n",
		len(r), sum.Executions, sum.Seconds/time.Hour.Seconds(), spoken(least), r[least].Executions,
		strings.Join(found, ", "))
}

// spoken is the name of a target for a page, where what is code and has a slash is a path.
func spoken(name string) string {
	dot := strings.LastIndexByte(name, '.')
	return name[dot+1:] + " of `" + name[:dot] + "`"
}

// addTo adds the results to those in a file, which may be absent, and prints and returns the sums of all runs.
func (r results) addTo(path string) (results, error) {
	all := results{}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("totals of earlier runs: %w", err)
	}
	for name, one := range r {
		all[name] = all[name].add(one)
	}
	sum := all.sum()
	fmt.Printf("with earlier runs: %d executions in %.0fs, %d targets\n", sum.Executions, sum.Seconds, len(all))
	if data, err = json.MarshalIndent(all, "", "\t"); err != nil {
		return nil, err
	}
	return all, os.WriteFile(path, append(data, '\n'), 0o644) //nolint:gosec // no secret, and a file of the repository
}
