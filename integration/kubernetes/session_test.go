// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/script"
)

// scripts are what those of cases call.
var scripts = map[string]string{
	"kubectl": `exec "$KUBECTL" --namespace "$NAMESPACE" "$@"` + "\n",
	"await": `want=$1
shift
end=$(($(date +%s) + $PATIENCE))
until [ "$("$@" 2>&1)" = "$want" ]; do
	if [ $(date +%s) -gt $end ]; then
		echo "await '$want': $* says: $("$@" 2>&1)" >&2
		exit 1
	fi
	sleep 0.3
done
`,
	"ready": `for pod; do set -- "$@" "pod/$pod"; shift; done
exec kubectl wait --for=condition=Ready --timeout="${PATIENCE}s" "$@" >/dev/null
`,
	"phase": `phase=$1
shift
for pod; do set -- "$@" "pod/$pod"; shift; done
exec kubectl wait --for=jsonpath={.status.phase}="$phase" --timeout="${PATIENCE}s" "$@" >/dev/null
`,
	"get": `kubectl get pod "$1" -o jsonpath="$2" && echo
`,
}

// session is one run of a case in one way.
type session struct {
	*cluster
	*script.Session
	way       string
	namespace string // the case's own
}

// play runs a case in a way, and cleans up. It returns what was seen.
func (c *cluster) play(ctx context.Context, kc kubeCase, way string) (account string, err error) {
	dir, err := os.MkdirTemp(c.Dir, "w")
	if err != nil {
		return "", err
	}
	s := &session{
		Session: &script.Session{Context: ctx, Dir: dir, Limit: harness.Slow(4 * time.Minute)},
		cluster: c, way: way, namespace: strings.ToLower(filepath.Base(dir)) + "-" + way,
	}
	s.Environ, s.Describe = s.environ, s.describe
	err = s.Run(func() {
		s.Must(os.Chmod(dir, 0o755), "directory of the case")
		s.create(kc)
		if kc.run != nil {
			kc.run(s)
		}
		if got := s.plain(s.Shell(kc.script)); got != kc.want {
			s.Fatalf("output is %q, want %q\n%s", got, kc.want, s.describe())
		}
		if kc.ours != nil && way != runcShim {
			kc.ours(s)
		}
		if !kc.changes {
			s.inspect()
		}
	})
	return s.plain(s.Account()), errors.Join(err, s.cleanUp())
}

// create makes the namespace, and all of the case in it.
func (s *session) create(c kubeCase) {
	s.Quiet(`"$KUBECTL" create namespace $NAMESPACE; await serviceaccount/default kubectl get serviceaccount default -o name`)
	if c.objects != "" {
		s.Must(os.WriteFile(filepath.Join(s.Session.Dir, "objects.yaml"), []byte(s.expand(c.objects)), 0o644), "objects")
		s.Quiet("kubectl create -f $W/objects.yaml")
	}
	s.pods(c.pods)
}

// pods makes pods. Scripts find them as $W/NAME.json.
func (s *session) pods(specs map[string]string) {
	files := ""
	for name, text := range specs {
		spec, err := s.manifest(name, s.expand(text))
		s.Must(err, "pod "+name)
		s.Must(os.WriteFile(filepath.Join(s.Session.Dir, name+".json"), spec, 0o644), "pod "+name)
		files += " -f $W/" + name + ".json"
	}
	if files != "" {
		s.Quiet("kubectl create" + files)
	}
}

// expand gives YAML what differs between ways and cases.
func (s *session) expand(text string) string {
	class := "runtimeClassName: null"
	if s.way != runcShim {
		class = "runtimeClassName: " + s.way
	}
	return strings.NewReplacer("$CLASS", class, "$IMAGE", harness.Image, "$W", s.Session.Dir, "$BIN", s.bin, "$NAMESPACE", s.namespace).Replace(text)
}

// manifest completes the specification of a pod. Those who do not say otherwise end at once.
func (s *session) manifest(name, text string) ([]byte, error) {
	var spec map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		return nil, err
	}
	metadata := map[string]any{"name": name}
	if annotations := spec["annotations"]; annotations != nil {
		metadata["annotations"] = annotations
		delete(spec, "annotations")
	}
	if s.way != runcShim {
		spec["runtimeClassName"] = s.way
	}
	if _, ok := spec["terminationGracePeriodSeconds"]; !ok {
		spec["terminationGracePeriodSeconds"] = 1
	}
	for _, kind := range []string{"initContainers", "containers"} {
		list, _ := spec[kind].([]any) // or nothing
		for _, one := range list {
			container, ok := one.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%s: %v", kind, one)
			}
			container["image"] = harness.Image
			container["imagePullPolicy"] = "IfNotPresent"
		}
	}
	return json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

// patience is how long scripts wait for pods. Some cases say so themselves.
func patience() time.Duration { return harness.Slow(90 * time.Second) }

func (s *session) environ() []string {
	return []string{
		"PATH=" + s.bin + ":" + os.Getenv("PATH"), "HOME=" + s.cluster.dir, "LC_ALL=C", "TERM=dumb",
		"KUBECTL=" + s.programs.Kubectl, "KUBECONFIG=" + filepath.Join(s.cluster.dir, "kubeconfig"),
		"NAMESPACE=" + s.namespace, "NODE=" + node, "BUSYBOX=" + s.Env.Busybox,
		"PATIENCE=" + strconv.Itoa(int(patience().Seconds())),
	}
}

// describe is what kubectl tells of the pods, for a case that fails.
func (s *session) describe() string {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(time.Minute))
	defer cancel()
	pods, err := s.kubectl(ctx, "describe", "pods", "--namespace", s.namespace)
	if err != nil {
		pods = err.Error()
	}
	return pods
}

// perRun names what a status has that differs between any two runs.
var perRun = []string{
	"hostIP", "hostIPs", "podIP", "podIPs", "containerID", "lastProbeTime", "lastTransitionTime", "startTime", "startedAt",
	"finishedAt",
}

// ofClass names what a pod's status has that its class adds to.
var ofClass = []string{"allocatedResources", "resources"}

// inspect puts the status of the pods that there are into the account.
func (s *session) inspect() {
	text, err := s.kubectl(s.Context, "get", "pods", "--namespace", s.namespace, "-o", "json")
	s.Must(err, "list pods")
	var list struct {
		Items []struct {
			Metadata struct{ Name, GenerateName string }
			Status   map[string]any
		}
	}
	s.Must(json.Unmarshal([]byte(text), &list), "list pods")
	var all []string
	for _, pod := range list.Items {
		script.Delete(pod.Status, perRun...)
		for _, name := range ofClass {
			delete(pod.Status, name)
		}
		conditions, _ := pod.Status["conditions"].([]any) // or none yet
		pod.Status["conditions"] = slices.DeleteFunc(conditions, func(c any) bool {
			condition, ok := c.(map[string]any)
			return ok && condition["type"] == "PodReadyToStartContainers" // it is told some time after the end of the pod
		})
		status, err := json.MarshalIndent(pod.Status, "", " ")
		s.Must(err, "status")
		if pod.Metadata.GenerateName != "" {
			pod.Metadata.Name = "one of several"
		}
		all = append(all, pod.Metadata.Name+" "+string(status)+"\n")
	}
	slices.Sort(all)
	for _, text := range all {
		s.Note(text)
	}
}

// cleanUp removes the pods as a user does, and the namespace.
func (s *session) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slow(3*time.Minute))
	defer cancel()
	var err error
	for _, what := range [][]string{
		{"deployments,jobs", "--all", "--cascade=foreground"}, {"pods", "--all"}, {"namespace", s.namespace, "--wait=false"},
	} {
		_, e := s.kubectl(ctx, append([]string{"delete", "--namespace", s.namespace}, what...)...)
		err = errors.Join(err, e)
	}
	return errors.Join(err, os.RemoveAll(s.Session.Dir))
}

// What differs between any two runs.
var volatile = []script.Replacement{
	{Pattern: regexp.MustCompile(`\b[0-9a-f]{64}\b`), By: "<id>"},
	{Pattern: regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), By: "<uid>"},
	{Pattern: regexp.MustCompile(`(?m)^[IWE]\d{4} .*\n`), By: ""}, // of kubectl's log
	{Pattern: regexp.MustCompile(`kube-api-access-\w{5}`), By: "kube-api-access"},
	{Pattern: regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)`), By: "<time>"},
}

func (s *session) plain(text string) string {
	text = strings.NewReplacer(s.namespace, "<namespace>", filepath.Base(s.Session.Dir), "<dir>").Replace(text)
	return script.Replace(text, volatile)
}
