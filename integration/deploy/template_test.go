// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"sigs.k8s.io/yaml"
)

// blocks returns the blocks of code of a language in docs/kubernetes.md.
func blocks(t *testing.T, language string) (found []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$")
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
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
		if err != nil {
			n.Fatal(err)
		}
		return b.String()
	}
	n.Fatalf("docs/kubernetes.md has no template %s", file)
	return ""
}

// The pod in a Sandbox of agent-sandbox is one, and names a RuntimeClass that there is.
func TestManifest_PodOfAgentSandbox(t *testing.T) {
	for _, text := range blocks(t, "yaml") {
		if !strings.Contains(text, "kind: Sandbox\n") {
			continue
		}
		var sandbox struct {
			Spec struct {
				PodTemplate struct{ Spec json.RawMessage }
			}
		}
		if err := yaml.Unmarshal([]byte(text), &sandbox); err != nil {
			t.Fatal(err)
		}
		var pod corev1.PodSpec
		if err := yaml.UnmarshalStrict(sandbox.Spec.PodTemplate.Spec, &pod); err != nil {
			t.Fatal(err)
		}
		if pod.RuntimeClassName == nil || len(pod.Containers) == 0 {
			t.Fatalf("pod %+v names no runtime class, or has no container", pod)
		}
		for _, c := range only[*nodev1.RuntimeClass](manifest(t, "runtimeclass.yaml")) {
			if c.Name == *pod.RuntimeClassName {
				return
			}
		}
		t.Fatalf("there is no RuntimeClass %s", *pod.RuntimeClassName)
	}
	t.Fatal("docs/kubernetes.md has no Sandbox")
}
