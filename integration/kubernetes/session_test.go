// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"sandbox.internal/shim/integration/harness"
)

// scripts are what those of cases call.
var scripts = map[string]string{
	"kubectl": `exec "$KUBECTL" --namespace "$NAMESPACE" "$@"` + "\n",
	"await": `want=$1
shift
end=$(($(date +%s) + ${PATIENCE:-90}))
until [ "$("$@" 2>&1)" = "$want" ]; do
	if [ $(date +%s) -gt $end ]; then
		echo "await '$want': $* says: $("$@" 2>&1)" >&2
		exit 1
	fi
	sleep 0.3
done
`,
	"ready": `for pod; do set -- "$@" "pod/$pod"; shift; done
exec kubectl wait --for=condition=Ready --timeout="${PATIENCE:-90}s" "$@" >/dev/null
`,
	"phase": `phase=$1
shift
for pod; do set -- "$@" "pod/$pod"; shift; done
exec kubectl wait --for=jsonpath={.status.phase}="$phase" --timeout="${PATIENCE:-90}s" "$@" >/dev/null
`,
	"get": `kubectl get pod "$1" -o jsonpath="$2" && echo
`,
}

// session is one run of a case in one way. Its methods end it when something is not as the case wants it.
type session struct {
	*cluster
	ctx       context.Context //nolint:containedctx // a session is one call
	way       string
	namespace string // the case's own
	dir       string // $W of scripts
	account   strings.Builder
}

// failure is what ends a session.
type failure struct{ error }

func (s *session) fatalf(format string, arg ...any) { panic(failure{fmt.Errorf(format, arg...)}) }

func (s *session) must(err error, what string) {
	if err != nil {
		s.fatalf("%s: %w", what, err)
	}
}

// play runs a case in a way, and cleans up. It returns what was seen.
func (c *cluster) play(ctx context.Context, kc kubeCase, way string) (account string, err error) {
	dir, err := os.MkdirTemp(c.Dir, "w")
	if err != nil {
		return "", err
	}
	s := &session{ctx: ctx, cluster: c, way: way, dir: dir, namespace: strings.ToLower(filepath.Base(dir)) + "-" + way}
	func() {
		defer func() {
			switch p := recover().(type) {
			case nil:
			case failure:
				err = p.error
			default:
				panic(p)
			}
		}()
		s.must(os.Chmod(dir, 0o755), "directory of the case")
		s.create(kc)
		if kc.run != nil {
			kc.run(s)
		}
		if got := s.plain(s.shell(kc.script)); got != kc.want {
			s.fatalf("output is %q, want %q\n%s", got, kc.want, s.describe())
		}
		if kc.ours != nil && way != runcShim {
			kc.ours(s)
		}
		if !kc.changes {
			s.inspect()
		}
	}()
	return s.plain(s.account.String()), errors.Join(err, s.cleanUp())
}

// create makes the namespace, and all of the case in it.
func (s *session) create(c kubeCase) {
	s.quiet(`"$KUBECTL" create namespace $NAMESPACE; await serviceaccount/default kubectl get serviceaccount default -o name`)
	if c.objects != "" {
		s.must(os.WriteFile(filepath.Join(s.dir, "objects.yaml"), []byte(s.expand(c.objects)), 0o644), "objects")
		s.quiet("kubectl create -f $W/objects.yaml")
	}
	s.pods(c.pods)
}

// pods makes pods. Scripts find them as $W/NAME.json.
func (s *session) pods(specs map[string]string) {
	files := ""
	for name, text := range specs {
		spec, err := s.manifest(name, s.expand(text))
		s.must(err, "pod "+name)
		s.must(os.WriteFile(filepath.Join(s.dir, name+".json"), spec, 0o644), "pod "+name)
		files += " -f $W/" + name + ".json"
	}
	if files != "" {
		s.quiet("kubectl create" + files)
	}
}

// expand gives YAML what differs between ways and cases.
func (s *session) expand(text string) string {
	class := "runtimeClassName: null"
	if s.way != runcShim {
		class = "runtimeClassName: " + s.way
	}
	return strings.NewReplacer("$CLASS", class, "$IMAGE", harness.Image, "$W", s.dir, "$BIN", s.bin, "$NAMESPACE", s.namespace).Replace(text)
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

// shell runs a script that must succeed, and returns its output.
func (s *session) shell(script string) string {
	stdout, stderr := s.sh(script)
	fmt.Fprintf(&s.account, "%s\n%s\n", stdout, stderr)
	return stdout
}

// quiet is shell with an output that differs each time.
func (s *session) quiet(script string) string {
	stdout, _ := s.sh(script)
	return strings.TrimSpace(stdout)
}

func (s *session) sh(script string) (stdout, stderr string) {
	ctx, cancel := context.WithTimeout(s.ctx, harness.Slow(4*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", script)
	cmd.Env = s.environ()
	cmd.Dir = s.dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		s.fatalf("script: %w (%v)\nstdout: %sstderr: %s\n%s", err, ctx.Err(), out.Bytes(), errs.Bytes(), s.describe())
	}
	return out.String(), errs.String()
}

// environ is that of a user's shell.
func (s *session) environ() []string {
	return []string{
		"PATH=" + s.bin + ":" + os.Getenv("PATH"), "HOME=" + s.cluster.dir, "LC_ALL=C", "TERM=dumb", "W=" + s.dir,
		"KUBECTL=" + s.programs.Kubectl, "KUBECONFIG=" + filepath.Join(s.cluster.dir, "kubeconfig"),
		"NAMESPACE=" + s.namespace, "NODE=" + node, "BUSYBOX=" + s.Env.Busybox,
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
	text, err := s.kubectl(s.ctx, "get", "pods", "--namespace", s.namespace, "-o", "json")
	s.must(err, "list pods")
	var list struct {
		Items []struct {
			Metadata struct{ Name, GenerateName string }
			Status   map[string]any
		}
	}
	s.must(json.Unmarshal([]byte(text), &list), "list pods")
	var all []string
	for _, pod := range list.Items {
		without(pod.Status)
		for _, name := range ofClass {
			delete(pod.Status, name)
		}
		conditions, _ := pod.Status["conditions"].([]any) // or none yet
		pod.Status["conditions"] = slices.DeleteFunc(conditions, func(c any) bool {
			condition, ok := c.(map[string]any)
			return ok && condition["type"] == "PodReadyToStartContainers" // it is told some time after the end of the pod
		})
		status, err := json.MarshalIndent(pod.Status, "", " ")
		s.must(err, "status")
		if pod.Metadata.GenerateName != "" {
			pod.Metadata.Name = "one of several"
		}
		all = append(all, pod.Metadata.Name+" "+string(status)+"\n")
	}
	slices.Sort(all)
	for _, text := range all {
		s.account.WriteString(text)
	}
}

// without removes what is volatile from parsed JSON.
func without(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range perRun {
			delete(v, name)
		}
		for _, child := range v {
			without(child)
		}
	case []any:
		for _, child := range v {
			without(child)
		}
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
	return errors.Join(err, os.RemoveAll(s.dir))
}

// What differs between any two runs.
var volatile = []struct {
	pattern *regexp.Regexp
	plain   string
}{
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "<id>"},
	{regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "<uid>"},
	{regexp.MustCompile(`(?m)^[IWE]\d{4} .*\n`), ""}, // of kubectl's log
	{regexp.MustCompile(`kube-api-access-\w{5}`), "kube-api-access"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)`), "<time>"},
}

func (s *session) plain(text string) string {
	text = strings.NewReplacer(s.namespace, "<namespace>", filepath.Base(s.dir), "<dir>").Replace(text)
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.plain)
	}
	return text
}
