// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset_test

import (
	"testing"
	"time"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/internal/testx"
)

// patience bounds what a test waits for; nothing takes that long unless it is broken.
const patience = time.Minute

// closeOne opens what Go's poller keeps.
func closeOne(tb testing.TB) {
	tb.Helper()
	n := cpuset.Inotify()
	testx.Must(tb, n.Watch([]string{tb.TempDir()}, nil))
	n.Close()
}

// told reports whether Wait returns for a change, rather than after a timeout that is long.
func told(n cpuset.Notifier) bool {
	begin := time.Now()
	return n.Wait(patience) && time.Since(begin) < patience/2
}

// quiet reports whether Wait waits.
func quiet(n cpuset.Notifier) bool {
	const while = 20 * time.Millisecond
	begin := time.Now()
	return n.Wait(while) && time.Since(begin) >= while
}

func TestInotify_ReportsWritesAndDirectories(t *testing.T) {
	w := plant(t)
	n := cpuset.Inotify()
	defer n.Close()
	file, missing := w.path("shared/cpuset.cpus"), w.path("later/cpuset.cpus")
	watch := func() {
		t.Helper()
		testx.Must(t, n.Watch([]string{file, missing}, []string{w.root}))
	}
	watch()
	if !quiet(n) {
		t.Error("told of nothing")
	}
	w.write("shared", "cpuset.cpus", "3")
	w.write("shared", "cpuset.cpus", "4")
	if !told(n) {
		t.Error("not told of a write")
	}
	if !quiet(n) {
		t.Error("two writes before Wait were told one by one")
	}
	w.write("shared", "cpuset.cpus.effective", "3")
	w.write("pod", "cpuset.cpus", "3")
	if !quiet(n) {
		t.Error("told of a file that is not watched")
	}
	w.mkdir("later", "", "")
	if !told(n) {
		t.Error("not told of a directory that was made")
	}
	watch()
	w.write("later", "cpuset.cpus", "3")
	if !told(n) {
		t.Error("not told of a file that was missing when it was first watched")
	}
	w.remove("shared")
	if !told(n) {
		t.Error("not told of a directory that was removed")
	}
	w.mkdir("shared", "", "")
	watch()
	for !quiet(n) { // what mkdir made
	}
	w.write("shared", "cpuset.cpus", "3")
	if !told(n) {
		t.Error("not told of a file with a new inode")
	}
	testx.Must(t, n.Watch(nil, nil))
	for !quiet(n) { // that watches were removed
	}
	w.write("later", "cpuset.cpus", "4")
	w.mkdir("another", "", "")
	if !quiet(n) {
		t.Error("told of what is not watched any more")
	}
}

func TestInotify_CloseEndsWaitAndLeavesNothing(t *testing.T) {
	closeOne(t)
	before := testx.OpenFiles(t)
	for _, files := range [][]string{nil, {t.TempDir()}} {
		n := cpuset.Inotify()
		testx.Must(t, n.Watch(files, nil))
		ended := make(chan bool)
		go func() { ended <- n.Wait(patience) }() // joined below
		n.Close()
		if <-ended || n.Wait(patience) {
			t.Errorf("Wait while watching %q = true after Close, want false", files)
		}
	}
	if got := testx.OpenFiles(t); got > before {
		t.Errorf("%d descriptors are open, want %d", got, before)
	}
}

// All of it with the real notifier, in a directory.
func TestInotify_ReconcilerFollowsThroughIt(t *testing.T) {
	closeOne(t)
	before := testx.OpenFiles(t)
	w := plant(t)
	r := cpuset.New(w.root, cpuset.Inotify)
	add(t, r, w.follow("shared"))
	for _, list := range []string{"2-3", "5", "0-6"} {
		w.assign("shared", list)
		testx.Eventually(t, "follow "+list, func() bool { return w.read("pod/c1", "cpuset.cpus") == list })
		w.write("pod/c1", "cpuset.cpus", "7")
		testx.Eventually(t, "correct drift", func() bool { return w.read("pod/c1", "cpuset.cpus") == list })
	}
	w.remove("shared")
	testx.Eventually(t, "see that the source is gone", func() bool { return state(t, r, "c1").Err != nil })
	w.wantCPUs("without source", "pod/c1", "0-6")
	w.mkdir("shared", "1", "1")
	testx.Eventually(t, "follow the source that was made again", func() bool { return w.read("pod/c1", "cpuset.cpus") == "1" })
	begin := time.Now()
	for _, list := range []string{"2", "3", "4", "5", "6", "0-1"} {
		w.assign("shared", list)
		testx.Eventually(t, "follow its change to "+list, func() bool { return w.read("pod/c1", "cpuset.cpus") == list })
	}
	if took := time.Since(begin); took > 6*time.Second { // which is what six changes take that are not told, at least
		t.Errorf("six changes of a source that was made again were followed after %v", took)
	}
	r.Stop()
	if got := testx.OpenFiles(t); got > before {
		t.Errorf("%d descriptors are open after Stop, want %d", got, before)
	}
}
