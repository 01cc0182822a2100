// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// restarts is the part of a status that tells of another run.
var restarts = regexp.MustCompile(`(?s)"lastState": (\{\}|\{.*?\n   \}),|"restartCount": \d+,`)

// upgrade installs a shim that is another file, as a new release is.
func (s *session) upgrade() {
	text, err := os.ReadFile(s.source)
	s.Must(err, "shim")
	dir := filepath.Join(s.Session.Dir, "release")
	s.Must(os.Mkdir(dir, 0o755), "release")
	other := filepath.Join(dir, shimName)
	s.Must(os.WriteFile(other, append(text, s.namespace...), 0o755), "release")
	s.Must(s.install(s.Context, other), "upgrade")
}

func TestKubernetes_Upgrade(t *testing.T) {
	compare(t, []kubeCase{
		{
			name: "an upgrade of the shim under running pods", alone: true,
			pods: map[string]string{"box": `containers: [{name: c, command: [sh, -c, "trap 'exit 3' TERM; while :; do sleep 0.1; done"], readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}}, {name: d, command: [sleep, "1000"]}]`},
			run: func(s *session) {
				s.Quiet(`ready box`)
				s.upgrade()
			},
			script: `kubectl exec box -c c -- echo hello; get box '{.status.containerStatuses[*].restartCount}'
				kubectl exec box -c c -- kill 1; await "1 0" get box '{.status.containerStatuses[*].restartCount}'; ready box
				sed 's/"name": *"box"/"name":"next"/' $W/box.json | kubectl create -f - >/dev/null; ready next; kubectl exec next -c d -- echo hello`,
			want: "hello\n0 0\nhello\n",
		},
	})
}
