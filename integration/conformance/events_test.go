// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse_ReturnsTheOutcomeOfEachTest(t *testing.T) {
	const log = `{"Action":"start"}
{"Action":"output","Output":"containerd starts\n"}
{"Action":"run","Test":"TestPasses"}
{"Action":"run","Test":"TestPasses/part"}
{"Action":"fail","Test":"TestPasses/part","Elapsed":0.1}
{"Action":"pass","Test":"TestPasses","Elapsed":1.5}
{"Action":"run","Test":"TestSkips"}
{"Action":"output","Test":"TestSkips","Output":"    a_test.go:1: no criu\n"}
{"Action":"output","Test":"TestSkips","Output":"--- SKIP: TestSkips (0.00s)\n"}
{"Action":"skip","Test":"TestSkips","Elapsed":0}
{"Action":"run","Test":"TestWaits"}
{"Action":"pause","Test":"TestWaits"}
{"Action":"run","Test":"TestHangs"}
{"Action":"pause","Test":"TestHangs"}
{"Action":"cont","Test":"TestHangs"}
{"Action":"output","Test":"TestHangs","Output":"panic: test timed out\n"}
{"Action":"output","Test":"TestHangs","Output":"goroutine 1 [running]:\n"}
{"Action":"fail","Elapsed":9}
`
	got, err := parse(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	if names, want := slices.Sorted(maps.Keys(got)), []string{
		"TestHangs", "TestPasses",
		"TestSkips",
	}; !slices.Equal(names, want) {
		t.Fatalf("tests with a result = %q, want %q: one that waited has had no turn", names, want)
	}
	if r := got["TestPasses"]; r.outcome != pass || r.took != 1500*time.Millisecond {
		t.Errorf("TestPasses = %s in %v, want PASS in 1.5s, whatever its part is", r.outcome, r.took)
	}
	if r := got["TestSkips"]; r.outcome != skip || r.reason() != "a_test.go:1: no criu" {
		t.Errorf("TestSkips = %s: %q, want SKIP with the reason it gave", r.outcome, r.reason())
	}
	if r, want := got["TestHangs"], []string{"panic: test timed out", "did not end"}; r.outcome != fail ||
		!slices.Equal(r.output, want) {
		t.Errorf("TestHangs = %s: %q, want FAIL: %q", r.outcome, r.output, want)
	}
}
