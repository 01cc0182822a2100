// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	"google.golang.org/grpc"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run starts the command, and returns the URL that it prints, and what it prints later.
func run(t *testing.T, o *cli.Options) (string, *bufio.Reader) {
	t.Helper()
	said, stderr := io.Pipe()
	cmd := Command(o)
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0"})
	cmd.SetErr(stderr)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		err := cmd.ExecuteContext(ctx)
		done <- errors.Join(err, stderr.CloseWithError(errors.New("the command has ended")))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("metrics: %v", err)
		}
	})
	lines := bufio.NewReader(said)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("no address: %v", err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "metrics at ")), lines
}

// length returns that of an answer.
func length(t *testing.T, url string) int {
	t.Helper()
	answer, err := http.Get(url)
	must(t, err)
	text, err := io.ReadAll(answer.Body)
	must(t, errors.Join(err, answer.Body.Close()))
	return len(text)
}

// up reports whether a scrape says that containerd answered.
func up(t *testing.T, url string) bool {
	t.Helper()
	answer, err := http.Get(url)
	must(t, err)
	text, err := io.ReadAll(answer.Body)
	must(t, errors.Join(err, answer.Body.Close()))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, prefix+"up "); ok {
			return value == "1\n"
		}
	}
	t.Fatalf("status %s, want whether containerd is up:\n%s", answer.Status, text)
	return false
}

// noNamespaces is a containerd without any.
type noNamespaces struct {
	namespacesapi.UnimplementedNamespacesServer
}

func (noNamespaces) List(
	context.Context, *namespacesapi.ListNamespacesRequest,
) (*namespacesapi.ListNamespacesResponse, error) {
	return &namespacesapi.ListNamespacesResponse{}, nil
}

// At boot, containerd may be started later than the exporter.
func TestCommand_WaitsForContainerd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, as the command does")
	}
	dir, err := os.MkdirTemp("", "s") // a socket's path is limited to 107 bytes
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "containerd")
	url, lines := run(t, &cli.Options{Address: socket, State: dir, Timeout: 10 * time.Second})
	why := make(chan string, 1)
	go func() {
		line, _ := lines.ReadString('\n') // the empty line is none of those that are wanted
		why <- line
		_, _ = io.Copy(io.Discard, lines) // ends with the command
	}()
	for range 3 {
		if up(t, url) {
			t.Error("containerd is up, and has no socket")
		}
	}
	if line := <-why; !strings.Contains(line, socket) {
		t.Errorf("why containerd is not up: %q, want its socket named", line)
	}
	server := grpc.NewServer()
	namespacesapi.RegisterNamespacesServer(server, noNamespaces{})
	l, err := net.Listen("unix", socket)
	must(t, err)
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); must(t, <-done) })
	soon, often := time.After(30*time.Second), time.Tick(20*time.Millisecond)
	for !up(t, url) {
		select {
		case <-soon:
			t.Fatal("containerd is not up, and answers")
		case <-often:
		}
	}
}
