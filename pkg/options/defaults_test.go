// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	runc "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"
)

// safeDir is a directory that nobody but root can write, as /tmp is not.
func safeDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/run", "defaults-test-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func TestDefaults_AreForWhoHasNoOptions(t *testing.T) {
	file := filepath.Join(safeDir(t), "config.toml")
	d := newDecoder(file)
	if o, err := d.Decode(nil, "ns"); err != nil || !cmp.Equal(o, Options{}) {
		t.Errorf("Decode without a file = %+v, %v, want none", o, err)
	}
	write(t, file, "StopTimeout = '5s'\nNoNewKeyring = true\n[namespace.moby]\nStopSignal = 'INT'\n[namespace.'k8s.io']\n")
	stop := func(key, value string) map[string]string { return map[string]string{key: value} }
	all := Options{Settings: stop("StopTimeout", "5s"), NoNewKeyring: true, File: file}
	for _, tc := range []struct {
		name      string
		in        *anypb.Any
		namespace string
		want      Options
	}{
		{"no message", nil, "default", all},
		{"an empty message", &anypb.Any{}, "default", all},
		{"options that set nothing", pack(t, runcOptions, &runc.Options{}), "default", all},
		{"TOML that sets nothing", pack(t, genericOptions, &runtimeoptions.Options{TypeUrl: "x"}), "default", all},
		{"TOML that is empty", pack(t, genericOptions, &runtimeoptions.Options{ConfigBody: []byte(" \n")}), "default", all},
		{
			"TOML that sets what is so without",
			pack(t, genericOptions, &runtimeoptions.Options{ConfigBody: []byte("NoNewKeyring = false")}), "default",
			Options{},
		},
		{"options of its own", pack(t, runcOptions, &runc.Options{NoPivotRoot: true}), "default", Options{NoPivotRoot: true}},
		{
			"what containerd adds for a user namespace", pack(t, runcOptions, &runc.Options{IoUid: 1, IoGid: 2}), "default",
			Options{Settings: stop("StopTimeout", "5s"), NoNewKeyring: true, File: file, IoUid: 1, IoGid: 2},
		},
		{"a namespace with a table", nil, "moby", Options{Settings: stop("StopSignal", "INT"), File: file}},
		{"a namespace with an empty table", nil, "k8s.io", Options{File: file}},
	} {
		got, err := d.Decode(tc.in, tc.namespace)
		if err != nil || !cmp.Equal(got, tc.want) {
			t.Errorf("%s: Decode = %v, diff (-want +got):\n%s", tc.name, err, cmp.Diff(tc.want, got))
		}
	}
	write(t, file, "")
	if o, err := d.Decode(nil, "ns"); err != nil || !cmp.Equal(o, Options{File: file}) {
		t.Errorf("Decode with an empty file = %+v, %v, want none", o, err)
	}
}

func TestDefaults_AreShownWithTheirNamespaces(t *testing.T) {
	file := filepath.Join(safeDir(t), "config.toml")
	d := newDecoder(file)
	if all, text, err := d.All(); all != nil || text != "" || err != nil {
		t.Errorf("All without a file = %v, %q, %v", all, text, err)
	}
	write(t, file, "Notify = true\n[namespace.a]\nIoUid = 1\n")
	all, text, err := d.All()
	want := map[string]Options{"": {Settings: map[string]string{"Notify": "true"}, File: file}, "a": {IoUid: 1, File: file}}
	if diff := cmp.Diff(want, all); err != nil || diff != "" {
		t.Errorf("All = %v (-want +got):\n%s", err, diff)
	}
	if want := `{"Notify":true,"namespace":{"a":{"IoUid":1}}}`; text != want {
		t.Errorf("text = %s, want %s", text, want)
	}
}

// logged returns where the log of the test goes.
func logged(tb testing.TB) *bytes.Buffer {
	tb.Helper()
	var out bytes.Buffer
	logger := log.L.Logger
	before := logger.Out
	logger.SetOutput(&out)
	tb.Cleanup(func() { logger.SetOutput(before) })
	return &out
}

func TestDefaults_AreLoggedWhenTheyChange(t *testing.T) {
	file := filepath.Join(safeDir(t), "config.toml")
	out := logged(t)
	d := newDecoder(file)
	for _, text := range []string{"IoUid = 1", "IoUid = 1", "IoUid = 2"} {
		write(t, file, text)
		if _, err := d.Decode(nil, "ns"); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"IoUid\\\":1}", "IoUid\\\":2}"} {
		if n := strings.Count(out.String(), want); n != 1 {
			t.Errorf("%s is logged %d times, want once: %s", want, n, out.String())
		}
	}
}

// Whoever names a runtime binary expects it to run.
func TestDefaults_SayOnceWhatHasNoEffect(t *testing.T) {
	file := filepath.Join(safeDir(t), "config.toml")
	write(t, file, "BinaryName = 'crun'")
	for name, tc := range map[string]struct {
		in   *anypb.Any
		want int
	}{
		"runc's options":     {pack(t, runcOptions, &runc.Options{BinaryName: "crun"}), 1},
		"TOML":               {pack(t, genericOptions, &runtimeoptions.Options{ConfigBody: []byte("BinaryName = 'crun'")}), 1},
		"the file":           {nil, 1},
		"without BinaryName": {pack(t, runcOptions, &runc.Options{Root: "/r"}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			out, d := logged(t), newDecoder(file)
			for range 2 {
				if _, err := d.Decode(tc.in, "ns"); err != nil {
					t.Fatal(err)
				}
			}
			if n := strings.Count(out.String(), "BinaryName has no effect"); n != tc.want {
				t.Errorf("it is logged %d times, want %d: %s", n, tc.want, out)
			}
		})
	}
}

func TestDefaults_RefusesWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(t *testing.T, dir, file string)
		is   func(error) bool
		want string // follows the path
	}{
		{"an unknown key", content("Nonsense = 1"), errdefs.IsInvalidArgument, "unknown key Nonsense; known are NoPivotRoot,"},
		{"an unknown key of a namespace", content("[namespace.a]\nNonsense = 1"), errdefs.IsInvalidArgument, "unknown key namespace.a.Nonsense; known"},
		{"no TOML", content("= ="), errdefs.IsInvalidArgument, `line 1: not valid TOML: `},
		{"an unfinished string", content("Notify = true\nStopTimeout = '5s"), errdefs.IsInvalidArgument, `line 2: not valid TOML: `},
		{"a key twice", content("Init = true\nInit = false"), errdefs.IsInvalidArgument, `line 2: not valid TOML: `},
		{"a number for a string", content("StopTimeout = 30"), errdefs.IsInvalidArgument, `StopTimeout 30: must be a string, in quotes`},
		{"a list for a string", content("Other = ['default']"), errdefs.IsInvalidArgument, `Other ["default"]: must be a string, in quotes`},
		{"a string for a list", content("AllowUnsafeAnnotations = 'listen'"), errdefs.IsInvalidArgument, `AllowUnsafeAnnotations "listen": must be a list of strings, such as ["a", "b"]`},
		{"a string for a switch", content("[namespace.a]\nNotify = 'true'"), errdefs.IsInvalidArgument, `namespace.a.Notify "true": must be true or false`},
		{"a number that is too large", content("IoGid = 4294967296"), errdefs.IsInvalidArgument, "IoGid 4294967296: must be a whole number from 0 to 4294967295"},
		{"a key in lower case", content("stoptimeout = 30"), errdefs.IsInvalidArgument, "stoptimeout 30: must be a string, in quotes"},
		{"a table for a switch", content("Notify.x = 1"), errdefs.IsInvalidArgument, `Notify {"x":1}: must be true or false`},
		{"a key for the name of a namespace", content("namespace.Notify = 3"), errdefs.IsInvalidArgument, `namespace.Notify 3: must be a table`},
		{"a number in a table in one line", content("namespace = {a = {Init = 3}}"), errdefs.IsInvalidArgument, `namespace.a.Init 3: must be true or false`},
		{"a namespace that is no table", content("namespace = 3"), errdefs.IsInvalidArgument, `namespace 3: must be a table of tables`},
		{"a size that is none", content("MaxShmSize = 'lots'"), errdefs.IsInvalidArgument, `MaxShmSize "lots": must be a size in bytes`},
		{"a size of nothing", content("MaxShmSize = '0'"), errdefs.IsInvalidArgument, `MaxShmSize "0": must be a size in bytes`},
		{"the name of our own field", content("File = '/x'"), errdefs.IsInvalidArgument, "unknown key File"},
		{"a relative root of a namespace", content("[namespace.a]\nRoot = 'x'"), errdefs.IsInvalidArgument, `Root "x": must be an absolute path`},
		{"a file that is too long", content(strings.Repeat("#", maxDefaults+1)), errdefs.IsInvalidArgument, "must have at most 1048576 bytes"},
		{"another owner", func(t *testing.T, _, file string) {
			t.Helper()
			content("")(t, "", file)
			must(t, os.Chown(file, 7, 0))
		}, errdefs.IsFailedPrecondition, "must belong to root, not to user 7"},
		{"others may write", func(t *testing.T, _, file string) {
			t.Helper()
			content("")(t, "", file)
			must(t, os.Chmod(file, 0o646))
		}, errdefs.IsFailedPrecondition, "must be writable by its owner alone, not have mode 0646"},
		{"a directory", func(t *testing.T, _, file string) {
			t.Helper()
			must(t, os.Mkdir(file, 0o755))
		}, errdefs.IsFailedPrecondition, "must be a regular file"},
		{"a link", func(t *testing.T, _, file string) {
			t.Helper()
			must(t, os.Symlink("/dev/null", file))
		}, errdefs.IsFailedPrecondition, "must not be a symbolic link"},
		{"a directory of others", func(t *testing.T, dir, file string) {
			t.Helper()
			content("")(t, "", file)
			must(t, os.Chmod(dir, 0o770))
		}, errdefs.IsFailedPrecondition, "must be writable by its owner alone, not have mode 0770"},
		{"a directory above of others", func(t *testing.T, dir, file string) {
			t.Helper()
			content("")(t, "", file)
			must(t, os.Chown(filepath.Dir(dir), 9, 9))
		}, errdefs.IsFailedPrecondition, "must belong to root, not to user 9"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(safeDir(t), "sub")
			must(t, os.Mkdir(dir, 0o755))
			file := filepath.Join(dir, "config.toml")
			tc.make(t, dir, file)
			_, err := newDecoder(file).Decode(nil, "ns")
			if !tc.is(err) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Decode = %v, want %q after the path", err, tc.want)
			}
			if _, _, all := newDecoder(file).All(); all == nil || all.Error() != err.Error() {
				t.Errorf("All = %v, want the same error", all)
			}
			o, err := newDecoder(file).Decode(pack(t, runcOptions, &runc.Options{NoPivotRoot: true}), "ns")
			if err != nil || !o.NoPivotRoot {
				t.Errorf("Decode of a container with options = %+v, %v, want them", o, err)
			}
		})
	}
}

// Examples of the default configuration file begin with its name.
func TestDefaults_TakesTheExamplesOfTheDocumentation(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	must(t, err)
	example := regexp.MustCompile("(?ms)^```toml\n# " + DefaultFile + "\n(.*?)^```$")
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		must(t, err)
		for _, m := range example.FindAllSubmatch(text, -1) {
			found++
			all, _, err := newDecoder(page).parse(m[1])
			if err != nil || all["nomad.slice"].Settings["CpusetSource"] != "nomad.slice/share.slice" {
				t.Errorf("%s: %q = %+v, %v", page, m[1], all, err)
			}
		}
	}
	if found < 2 {
		t.Errorf("%d examples found, want those of configuration.md and nomad.md", found)
	}
}

func content(text string) func(t *testing.T, _, file string) {
	return func(t *testing.T, _, file string) { t.Helper(); write(t, file, text) }
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func FuzzDefaults(f *testing.F) {
	f.Add([]byte("IoUid = 1\n[namespace.a]\nStopTimeout = '1s'\n"))
	f.Add([]byte("namespace = 1\n[namespace.'']\nFile = ''"))
	d := newDecoder("/etc/x.toml")
	f.Fuzz(func(t *testing.T, body []byte) {
		all, _, err := d.parse(body)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), "/etc/x.toml: ") {
				t.Errorf("parse(%q) = %v", body, err)
			}
			return
		}
		for _, o := range all {
			wantSame(t, o)
		}
	})
}

func BenchmarkDefaults_WithoutAFile(b *testing.B) {
	d := newDecoder(filepath.Join(safeDir(b), "config.toml"))
	for b.Loop() {
		if _, err := d.Decode(nil, "ns"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDefaults_WithAFile(b *testing.B) {
	file := filepath.Join(safeDir(b), "config.toml")
	write(b, file, "CpusetSource = 'nomad.slice/share.slice'\nStopTimeout = '10s'\n")
	d := newDecoder(file)
	for b.Loop() {
		if _, err := d.Decode(nil, "ns"); err != nil {
			b.Fatal(err)
		}
	}
}
