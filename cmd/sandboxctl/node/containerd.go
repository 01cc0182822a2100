// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	sandboxapi "github.com/containerd/containerd/api/services/sandbox/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// dial connects to containerd. An error says what a person can do.
func dial(ctx context.Context, c Config) (*grpc.ClientConn, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("sandboxctl must be run as root: it asks the shims, which answer nobody else")
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	probe, _, err := shim.DialOwn(ctx, c.Address)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("containerd's socket %s: does not exist: is containerd running? --address names another",
			c.Address)
	case err != nil:
		return nil, fmt.Errorf("containerd's socket %s: %w", c.Address, err)
	}
	_ = probe.Close() // nothing was said
	// While containerd is down, the client connects again once a second.
	again := backoff.Config{BaseDelay: time.Second, Multiplier: 1, MaxDelay: time.Second}
	return grpc.NewClient("unix://"+c.Address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, _, err := shim.DialOwn(ctx, c.Address)
			return conn, err
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: c.Timeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
}

// Version returns that of containerd.
func (n *Node) Version(ctx context.Context) (string, error) {
	v, err := versionapi.NewVersionClient(n.conn).Version(ctx, &emptypb.Empty{})
	return v.GetVersion(), errgrpc.ToNative(err)
}

// Known calls add with each container, task and sandbox.
func (n *Node) Known(ctx context.Context, add func(namespace, id string)) error {
	if err := n.list(ctx); err != nil {
		return err
	}
	for _, c := range n.containers {
		add(c.Namespace, c.ID)
	}
	for _, s := range n.sandboxes {
		add(s.namespace, s.id)
	}
	names, err := n.namespaces(ctx)
	for _, namespace := range names {
		ctx, cancel := n.in(ctx, namespace)
		defer cancel()
		tasks, err := tasksapi.NewTasksClient(n.conn).List(ctx, &tasksapi.ListTasksRequest{})
		if err != nil {
			return fmt.Errorf("containerd: list tasks of %s: %w", namespace, errgrpc.ToNative(err))
		}
		for _, t := range tasks.Tasks {
			add(namespace, t.ID)
		}
	}
	return err
}

// namespaces returns those of containerd that are asked for.
func (n *Node) namespaces(ctx context.Context) ([]string, error) {
	if n.config.Namespace != "" {
		return []string{n.config.Namespace}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.config.Timeout)
	defer cancel()
	answer, err := namespacesapi.NewNamespacesClient(n.conn).List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		return nil, fmt.Errorf("containerd: list namespaces: %w", errgrpc.ToNative(err))
	}
	var names []string
	for _, one := range answer.Namespaces {
		names = append(names, one.Name)
	}
	slices.Sort(names)
	return names, nil
}

// in returns a context for calls about a namespace, with a deadline.
func (n *Node) in(ctx context.Context, namespace string) (context.Context, context.CancelFunc) {
	return context.WithTimeout(namespaces.WithNamespace(ctx, namespace), n.config.Timeout)
}

// eachContainer calls keep with each container of a namespace. They come one by one: each may have a megabyte of
// configuration, and containerd sends no answer of more than 16.
func (n *Node) eachContainer(ctx context.Context, namespace string, keep func(*containersapi.Container)) error {
	ctx, cancel := n.in(ctx, namespace)
	defer cancel()
	stream, err := containersapi.NewContainersClient(n.conn).ListStream(ctx, &containersapi.ListContainersRequest{})
	for err == nil {
		var m *containersapi.ListContainerMessage
		if m, err = stream.Recv(); err == nil {
			keep(m.Container)
		}
	}
	if errors.Is(err, io.EOF) {
		err = ctx.Err() // containerd ends a list that was cut off as one that is complete
	}
	if err != nil {
		return fmt.Errorf("containerd: list containers of %s: %w", namespace, errgrpc.ToNative(err))
	}
	return nil
}

// listSandboxes returns none if containerd has no Sandbox API.
func (n *Node) listSandboxes(ctx context.Context, namespace string) ([]*types.Sandbox, error) {
	ctx, cancel := n.in(ctx, namespace)
	defer cancel()
	list, err := sandboxes(ctx, n.conn)
	if err != nil {
		return nil, fmt.Errorf("containerd: list sandboxes of %s: %w", namespace, err)
	}
	return list, nil
}

// maxMessage is the most that is taken in one answer of containerd, which sends no more than 16 MiB by default.
const maxMessage = 64 << 20

// sandboxes returns the sandboxes of the namespace of ctx, or none if containerd has no Sandbox API. Each has its pod's
// annotations. If containerd will not send all of them in one answer, it is asked for parts, by how their ids begin.
func sandboxes(ctx context.Context, conn grpc.ClientConnInterface) ([]*types.Sandbox, error) {
	all, err := listOf(ctx, sandboxapi.NewStoreClient(conn))
	if errdefs.IsNotImplemented(err) {
		return nil, nil
	}
	if errdefs.IsResourceExhausted(err) {
		return parts(ctx, sandboxapi.NewStoreClient(conn), "", idCharacters)
	}
	return all, err
}

func listOf(ctx context.Context, store sandboxapi.StoreClient, filters ...string) ([]*types.Sandbox, error) {
	answer, err := store.List(ctx, &sandboxapi.StoreListRequest{Filters: filters})
	return answer.GetList(), errgrpc.ToNative(err)
}

// idCharacters are those of ids (containerd pkg/identifiers). The last stands for itself at the end of a class.
const idCharacters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-"

// parts returns the sandboxes with ids that begin so, followed by one of the characters.
func parts(ctx context.Context, store sandboxapi.StoreClient, begin, characters string) ([]*types.Sandbox, error) {
	all, err := listOf(ctx, store, "id~="+strconv.Quote("^"+regexp.QuoteMeta(begin)+"["+characters+"]"))
	if !errdefs.IsResourceExhausted(err) {
		return all, err
	}
	half := len(characters) / 2
	if half > 0 {
		all, err = parts(ctx, store, begin, characters[:half])
	} else {
		begin += characters
		all, err = listOf(ctx, store, "id=="+strconv.Quote(begin))
		characters = idCharacters
	}
	if err != nil {
		return nil, err
	}
	rest, err := parts(ctx, store, begin, characters[half:])
	return append(all, rest...), err
}

var states = map[tasktypes.Status]State{
	tasktypes.Status_CREATED: Created, tasktypes.Status_RUNNING: Running, tasktypes.Status_PAUSING: Pausing,
	tasktypes.Status_PAUSED: Paused, tasktypes.Status_STOPPED: Stopped,
}

// askTask sets what containerd knows of a task.
func (n *Node) askTask(ctx context.Context, c *Container) {
	ctx, cancel := n.in(ctx, c.Namespace)
	defer cancel()
	answer, err := tasksapi.NewTasksClient(n.conn).Get(ctx, &tasksapi.GetRequest{ContainerID: c.ID})
	switch err = errgrpc.ToNative(err); {
	case errdefs.IsNotFound(err):
		c.State = NoTask
		return
	case err != nil:
		c.State, c.Error = Dead, err.Error()
		return
	}
	p := answer.Process
	c.Pid, c.ExitStatus = int(p.Pid), p.ExitStatus
	c.State = states[p.Status]
	if c.State == "" {
		c.State, c.Error = Dead, "its shim does not answer containerd"
	}
}

// Labels and annotations of CRI. Those of a container are there whoever made the pod.
const (
	criKind      = "io.cri-containerd.kind"
	criSandboxID = "io.kubernetes.cri.sandbox-id"
	criPod       = "io.kubernetes.cri.sandbox-name"
	criNamespace = "io.kubernetes.cri.sandbox-namespace"
	criContainer = "io.kubernetes.cri.container-name"
	groupID      = "io.containerd.runc.v2.group"
	podNamespace = "io.kubernetes.pod.namespace" // the kubelet's, like the next one
	podName      = "io.kubernetes.pod.name"
	criMetadata  = "metadata" // extension of a sandbox
)

// place is where a container belongs.
type place struct {
	sandbox string // id, or that of the group whose shim it shares; empty: none
	pod     string // NAMESPACE/NAME of Kubernetes; empty: none
	name    string // in its pod; empty: none
}

func placeOf(c *containersapi.Container) place {
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	_ = json.Unmarshal(c.GetSpec().GetValue(), &spec) // that of another kind of runtime has none
	a := spec.Annotations
	p := place{sandbox: cmp.Or(c.Sandbox, a[criSandboxID], a[groupID]), pod: podOf(c.Labels), name: a[criContainer]}
	if a[criPod] != "" {
		p.pod = a[criNamespace] + "/" + a[criPod]
	}
	return p
}

// podOf returns the name of the Kubernetes pod to which labels belong; empty for none.
func podOf(labels map[string]string) string {
	if labels[podName] == "" {
		return ""
	}
	return labels[podNamespace] + "/" + labels[podName]
}

// podOfSandbox returns the name of a sandbox's Kubernetes pod; empty if it is not one. CRI keeps the pod's
// configuration with it (containerd internal/cri/store/sandbox, Metadata).
func podOfSandbox(s *types.Sandbox) string {
	var m struct {
		Metadata struct {
			Config struct {
				Metadata struct {
					Name      string `json:"name"`
					Namespace string `json:"namespace"`
				} `json:"metadata"`
			}
		}
	}
	if json.Unmarshal(s.Extensions[criMetadata].GetValue(), &m) != nil { // that of another client
		return podOf(s.Labels)
	}
	name := m.Metadata.Config.Metadata
	if name.Name == "" {
		return podOf(s.Labels)
	}
	return name.Namespace + "/" + name.Name
}
