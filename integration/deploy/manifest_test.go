// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"sandbox.internal/shim/integration/harness"
)

const deployDir = "../../deploy"

// manifest reads a file as an API server that validates strictly: unknown and double fields are errors.
func manifest(t *testing.T, name string) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, nodev1.AddToScheme, rbacv1.AddToScheme,
	} {
		harness.Must(t, add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	text, err := os.ReadFile(filepath.Join(deployDir, name))
	harness.Must(t, err)
	var objects []runtime.Object
	for documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text))); ; {
		document := make([]byte, len(text))
		n, err := documents.Read(document)
		if errors.Is(err, io.EOF) {
			return objects
		}
		harness.Must(t, err)
		object, _, err := decoder.Decode(document[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, document[:n])
		}
		objects = append(objects, object)
	}
}

func only[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, o := range objects {
		if object, ok := o.(T); ok {
			found = append(found, object)
		}
	}
	return found
}

// The RuntimeClasses name the handlers that install.sh makes, and the labels that pod.sh gives.
func TestManifest_RuntimeClassesFitTheInstaller(t *testing.T) {
	classes := only[*nodev1.RuntimeClass](manifest(t, "runtimeclass.yaml"))
	var names []string
	for _, c := range classes {
		names = append(names, c.Name)
		if c.Handler != c.Name {
			t.Errorf("RuntimeClass %s has handler %s", c.Name, c.Handler)
		}
		for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if c.Overhead == nil || c.Overhead.PodFixed.Name(resource, "").IsZero() {
				t.Errorf("RuntimeClass %s has no overhead of %s", c.Name, resource)
			}
		}
		for label := range c.Scheduling.NodeSelector {
			contains(t, "pod.sh", label)
		}
		contains(t, "containerd-2.toml", "runtimes."+c.Handler+"]\n")
	}
	if want := []string{"sandbox", "sandbox-pauseless"}; !slices.Equal(names, want) {
		t.Errorf("RuntimeClasses are %q, want %q", names, want)
	}
}

func contains(t *testing.T, name, text string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(deployDir, name))
	harness.Must(t, err)
	if !strings.Contains(string(content), text) {
		t.Errorf("%s has no %q", name, text)
	}
}

// What the pods need is in both manifests, and what they name exists.
func TestManifest_DaemonSetsFitTheInstaller(t *testing.T) {
	installer := manifest(t, "daemonset.yaml")
	account := only[*corev1.ServiceAccount](installer)[0]
	binding := only[*rbacv1.ClusterRoleBinding](installer)[0]
	if s := binding.Subjects[0]; s.Name != account.Name || s.Namespace != account.Namespace {
		t.Errorf("the role is bound to %s/%s, want %s/%s", s.Namespace, s.Name, account.Namespace, account.Name)
	}
	if role := only[*rbacv1.ClusterRole](installer)[0]; role.Name != binding.RoleRef.Name {
		t.Errorf("role %s is bound, want %s", binding.RoleRef.Name, role.Name)
	}
	for action, objects := range map[string][]runtime.Object{
		"install":   installer,
		"uninstall": manifest(t, "uninstall.yaml"),
	} {
		set := only[*appsv1.DaemonSet](objects)[0]
		pod := set.Spec.Template.Spec
		if pod.ServiceAccountName != account.Name || set.Namespace != account.Namespace {
			t.Errorf("%s: service account %s/%s, want %s/%s", action, set.Namespace, pod.ServiceAccountName,
				account.Namespace, account.Name)
		}
		for key, value := range set.Spec.Selector.MatchLabels {
			if set.Spec.Template.Labels[key] != value {
				t.Errorf("%s: the template's labels %v do not match the selector", action, set.Spec.Template.Labels)
			}
		}
		c := pod.InitContainers[0]
		if !pod.HostPID || !*c.SecurityContext.Privileged {
			t.Errorf("%s: nsenter needs the host's pids and privileges", action)
		}
		if !slices.Equal(c.Args, []string{action}) {
			t.Errorf("%s: arguments %q", action, c.Args)
		}
		env := map[string]string{}
		for _, e := range c.Env {
			env[e.Name] = e.Value
		}
		path := pod.Volumes[0].HostPath.Path
		if env["HOST_DIR"] != path || c.VolumeMounts[0].MountPath != path ||
			c.VolumeMounts[0].Name != pod.Volumes[0].Name {
			t.Errorf("%s: HOST_DIR %q, mounted %q, on the node %q: want one path", action, env["HOST_DIR"],
				c.VolumeMounts[0].MountPath, path)
		}
		if _, ok := env["NODE_NAME"]; !ok {
			t.Errorf("%s: no NODE_NAME", action)
		}
		if got := env["UPGRADE_SHIMS"]; action == "install" && got != "false" {
			t.Errorf("install: UPGRADE_SHIMS is %q by default, want false", got)
		}
	}
}

// The image has every file that pod.sh copies to the node.
func TestManifest_ImageHasWhatThePodsCopy(t *testing.T) {
	for _, file := range []string{
		"install.sh", "install-config.sh", "install-containerd.sh", "containerd-1.toml",
		"containerd-2.toml",
	} {
		contains(t, "Dockerfile", "deploy/"+file+" ")
		contains(t, "pod.sh", file+" ")
	}
	for _, program := range []string{shimName, "sandboxctl"} {
		contains(t, "Dockerfile", "${BIN}/"+program+" ")
	}
	for _, manifest := range []string{"daemonset.yaml", "uninstall.yaml"} { // the image is for one architecture
		contains(t, manifest, "kubernetes.io/arch")
	}
}

// The commands of the page that fill in the manifests, for nodes of arm64.
func TestManifest_PageNamesTheImageAndItsArchitecture(t *testing.T) {
	page, err := os.ReadFile("../../docs/kubernetes.md")
	harness.Must(t, err)
	commands := regexp.MustCompile(`(?m)^    (sed .* deploy/\S+\.yaml) \| kubectl apply -f -$`).FindAllStringSubmatch(string(page), -1)
	if len(commands) != 2 {
		t.Fatalf("commands of the page: %q, want two", commands)
	}
	for _, match := range commands {
		c := exec.Command("sh", "-c", match[1])
		c.Dir, c.Env = "../..", append(os.Environ(), "IMAGE=registry.example/amd64/shim:1", "ARCH=arm64")
		out, err := c.Output()
		text := string(out)
		if err != nil || !strings.Contains(text, "image: registry.example/amd64/shim:1\n") || !strings.Contains(text, "arm64") ||
			strings.Count(text, "amd64") != strings.Count(text, "image: ") {
			t.Errorf("%s: %v\n%s", match[1], err, text)
		}
	}
}

func TestScripts_AreCleanForShellcheck(t *testing.T) {
	program, err := exec.LookPath("shellcheck")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("NOT TESTED: apt-get install shellcheck:", err)
	}
	var scripts []string
	for _, pattern := range []string{"*.sh", "package/*.sh"} {
		found, err := filepath.Glob(filepath.Join(deployDir, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no scripts %s: %v", pattern, err)
		}
		scripts = append(scripts, found...)
	}
	for i, s := range scripts {
		scripts[i] = strings.TrimPrefix(s, "../../")
		if text, err := os.ReadFile(s); err != nil || bytes.Count(text, []byte("\n")) > 400 {
			t.Errorf("%s: %v, or more than 400 lines", s, err)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{"--external-sources"}, scripts...)...)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The files for people who configure by hand are read by the containerd of their series, alone and imported.
func TestManifest_FilesForEachSeries(t *testing.T) {
	for series, file := range map[string]string{
		"1.6": "containerd-1.toml", "1.7": "containerd-1.toml",
		"2.4": "containerd-2.toml",
	} {
		t.Run("containerd "+series, func(t *testing.T) {
			path, err := filepath.Abs(filepath.Join(deployDir, file))
			harness.Must(t, err)
			n := newNode(t, release(t, series), func(n *node) string {
				places, _, _ := strings.Cut(basic(n), "[plugins") // 1.x replaces a whole section by what is imported
				version := fmt.Sprintf("version = %d\n", map[bool]int{true: 2, false: 3}[series < "2"])
				return fmt.Sprintf("imports = [%q]\n%s%s", path, version, strings.Replace(places, version, "", 1))
			})
			n.wantCRI()
		})
	}
}
