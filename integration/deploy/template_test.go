// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"sigs.k8s.io/yaml"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// blocks returns the blocks of code of a language in docs/kubernetes.md.
func blocks(t *testing.T, language string) (found []string) {
	t.Helper()
	all, err := section.Blocks("../../docs/kubernetes.md")
	harness.Must(t, err)
	for _, b := range all {
		if b.Language == language {
			found = append(found, b.Text)
		}
	}
	if len(found) == 0 {
		t.Fatalf("docs/kubernetes.md has no block of %s", language)
	}
	return found
}

// The templates of the page, over a configuration as k3s and RKE2 write it, are read by containerd, and CRI has the
// handler.
func TestTemplate_OfK3sIsRead(t *testing.T) {
	for series, file := range map[string]string{"1.7": "config.toml.tmpl", "2.4": "config-v3.toml.tmpl"} {
		t.Run("containerd "+series, func(t *testing.T) {
			n := newNode(t, release(t, series), func(n *node) string { return n.rendered("containerd/" + file) })
			got := settings(n.dump())
			table := runtimesTable(n.c.Version)
			if handler := got[table+"sandbox runtime_type"]; handler != "io.containerd.sandbox.v1" {
				t.Errorf("handler sandbox is runtime %q", handler)
			}
			if other := got[table+"runc.options SystemdCgroup"]; other != "true" {
				t.Errorf("SystemdCgroup of runc is %q: what k3s configures has gone", other)
			}
			n.wantOffered("sandbox")
		})
	}
}

// rendered is the configuration that comes of the page's template for a file.
func (n *node) rendered(file string) string {
	n.Helper()
	base := basic(n)
	if strings.HasPrefix(n.c.Version, "1.") { // which says nothing of runtimes
		base += v2runc
	}
	for _, text := range blocks(n.T, "toml") {
		if first, _, _ := strings.Cut(text, "\n"); !strings.HasPrefix(first, "# ") || !strings.HasSuffix(first, file) {
			continue
		}
		page, err := template.New(file).Parse(text)
		if err == nil {
			_, err = page.New("base").Parse(base)
		}
		var b strings.Builder
		if err == nil {
			err = page.ExecuteTemplate(&b, file, nil)
		}
		harness.Must(n, err)
		return b.String()
	}
	n.Fatalf("docs/kubernetes.md has no template %s", file)
	return ""
}

// The pods of the page, and the one in a Sandbox of agent-sandbox, are pods, and name a RuntimeClass that there is.
func TestManifest_PodsOfThePage(t *testing.T) {
	var classes []string
	for _, c := range only[*nodev1.RuntimeClass](manifest(t, "runtimeclass.yaml")) {
		classes = append(classes, c.Name)
	}
	kinds := map[string]int{}
	for _, text := range blocks(t, "yaml") {
		var object struct {
			Kind string
			Spec json.RawMessage
		}
		harness.Must(t, yaml.Unmarshal([]byte(text), &object))
		kinds[object.Kind]++
		spec := object.Spec
		if object.Kind == "Sandbox" {
			var sandbox struct {
				PodTemplate struct{ Spec json.RawMessage }
			}
			harness.Must(t, yaml.UnmarshalStrict(spec, &sandbox))
			spec = sandbox.PodTemplate.Spec
		}
		var pod corev1.PodSpec
		if err := yaml.UnmarshalStrict(spec, &pod); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if pod.RuntimeClassName == nil || !slices.Contains(classes, *pod.RuntimeClassName) || len(pod.Containers) == 0 {
			t.Errorf("%s: no container, or not a runtime class of %q", text, classes)
		}
	}
	if kinds["Pod"] == 0 || kinds["Sandbox"] == 0 {
		t.Errorf("docs/kubernetes.md has %v, want a Pod and a Sandbox", kinds)
	}
}

// containerd knows each key of the tables that pages show for its configuration, and the shim each option.
func TestDocs_TablesAreRead(t *testing.T) {
	options, err := os.ReadFile("../../docs/configuration.md")
	harness.Must(t, err)
	pages, err := filepath.Glob("../../docs/*.md")
	harness.Must(t, err)
	var found []string
	for _, page := range pages {
		all, err := section.Blocks(page)
		harness.Must(t, err)
		for _, b := range all {
			if b.Language != "toml" || !strings.Contains(b.Text, "[plugins.") || strings.Contains(b.Text, "{{") {
				continue
			}
			found = append(found, filepath.Base(page))
			series, version := "2.4", "version = 3\n"
			if strings.Contains(b.Text, "grpc.v1.cri") {
				series, version = "1.7", "version = 2\n"
			}
			file := filepath.Join(t.TempDir(), "config.toml")
			harness.Must(t, os.WriteFile(file, []byte(version+strings.ReplaceAll(b.Text, version, "")), 0o600))
			dump, err := exec.CommandContext(t.Context(), release(t, series), "--config", file, "config", "dump").Output()
			if err != nil {
				t.Fatalf("containerd %s, %s: %v\n%s", series, page, err, b.Text)
			}
			read := settings(string(dump))
			for key, value := range settings(b.Text) {
				name := key[strings.LastIndexByte(key, ' ')+1:]
				switch isOption := strings.Contains(key, ".options "); {
				case name == "version":
				case read[key] != value:
					t.Errorf("%s: containerd %s reads %s as %q, want %q", page, series, key, read[key], value)
				case isOption && !strings.Contains(string(options), "\n| `"+name+"` |"):
					t.Errorf("%s: docs/configuration.md has no option %s", page, name)
				}
			}
		}
	}
	for _, page := range []string{"configuration.md", "cpuset.md", "kubernetes.md"} {
		if !slices.Contains(found, page) {
			t.Errorf("no table found in %s", page)
		}
	}
}
