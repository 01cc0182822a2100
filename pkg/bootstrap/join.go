// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

// #include "detach.h"
import "C"

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/pkg/protofield"
	"sandbox.internal/shim/pkg/unixfile"
)

// The method by which a shim is asked to take a container or a pod (pkg/service/inspect.proto).
const (
	OwnService = "io.containerd.sandbox.v1.Inspect"
	JoinMethod = "Join"
)

// JoinRequest asks a shim to take a container or a pod. join.c makes the same message.
type JoinRequest struct {
	ID      string
	Pod     string // of which the container is; ID for a pod itself, and for a container outside of pods
	Bundle  string
	Digest  string // of the request of start, in hexadecimal; "" if it is not known
	Program string // that runs start
}

// joinTimeout bounds the wait for a shim that is to take a pod. One that hangs gets none.
const joinTimeout = time.Second

// errRefused says that a shim takes no more pods.
var errRefused = fmt.Errorf("the shim takes no more: %w", errdefs.ErrUnavailable)

// find returns the socket of a new shim, or nil and the answer of start if a shim has the group, or takes it.
func (r *request) find(ctx context.Context) (l *listener, answer []byte, err error) {
	r.Digest = uint64(C.detached.digest)
	join := JoinRequest{ID: r.ID, Pod: r.group, Bundle: r.Bundle, Digest: digestText(r.Digest), Program: ownProgram()}
	if r.group == r.ID && r.Options.SharesShims() && r.Digest != 0 {
		return r.findShared(ctx, join)
	}
	l, err = listen(ctx, r.SocketPath)
	if !errors.Is(err, errdefs.ErrAlreadyExists) {
		return l, nil, err
	}
	if r.Options.SharesShims() { // which has to know of which pod the container is
		join.Digest = ""
		if _, _, err := callJoin(ctx, r.SocketPath, join); err != nil { // one of a former release, or that ends
			log.L.WithError(err).Debug("join the shim of the group")
		}
	}
	return nil, r.Answer, nil
}

// findShared finds a shim that takes the pod, by the link, or the socket of a new one, with a link to it. No shim is
// called with the lock held: of many starts at once, the first makes the shim, and the others wait for its answer.
func (r *request) findShared(ctx context.Context, join JoinRequest) (*listener, []byte, error) {
	link := r.link()
	refused := ""
	// One that was started for this id before may live, with others, and has the socket of the id.
	own := socketPath(filepath.Dir(r.SocketPath), r.Address, r.Namespace, filepath.Join(r.ID, rand.Text()))
	for {
		unlock, err := unixfile.Lock(ctx, filepath.Dir(r.SocketPath))
		if err != nil {
			return nil, nil, err
		}
		shim, _ := os.Readlink(link)
		if shim == "" || shim == refused {
			l, err := r.open(ctx, own, link)
			unlock()
			return l, nil, err
		}
		unlock()
		answer, address, err := callJoin(ctx, shim, join)
		if err == nil {
			return nil, answer, writeAddress(r.Bundle, address)
		}
		log.L.WithError(err).WithField("shim", shim).Debug("a shim takes no more")
		refused = shim
	}
}

// open makes the socket of a new shim, and the link to it. The caller has the lock of the directory of sockets.
func (r *request) open(ctx context.Context, socket, link string) (l *listener, err error) {
	r.SocketPath = socket
	if r.Answer, err = encodeAnswer(r.version, socketAddress(socket)); err != nil {
		return nil, err
	}
	if err := writeAddress(r.Bundle, socketAddress(socket)); err != nil {
		return nil, err
	}
	if l, err = listenLocked(ctx, socket); err != nil {
		return nil, err
	}
	if err := makeLink(link, socket); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// callJoin asks the shim at a socket.
func callJoin(ctx context.Context, socket string, r JoinRequest) (answer []byte, address string, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, "", err
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // the answer is in, or there is none
	text, err := protofield.Encode(r.ID, r.Pod, r.Bundle, r.Digest, r.Program)
	if err != nil {
		return nil, "", err
	}
	var request, response emptypb.Empty
	request.ProtoReflect().SetUnknown(text)
	if err := client.Call(ctx, OwnService, JoinMethod, &request, &response); err != nil {
		return nil, "", err
	}
	var encoded string
	err = protofield.Decode(response.ProtoReflect().GetUnknown(), &encoded, &address)
	if err == nil && address == "" {
		err = errRefused
	}
	return []byte(encoded), address, err
}

// DigestText is the digest as in a [JoinRequest].
func (d Daemon) DigestText() string { return digestText(d.Digest) }

// SocketAddress returns the socket as containerd dials it.
func (d Daemon) SocketAddress() string { return socketAddress(d.SocketPath) }

func digestText(digest uint64) string { return fmt.Sprintf("%016x", digest) }

// ownProgram says which program this process executes, as program_of in join.c.
func ownProgram() string {
	var st unix.Stat_t
	_ = unix.Stat("/proc/self/exe", &st) // all is 0
	return fmt.Sprintf("%d:%d:%d.%d", st.Dev, st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
}

// linkPrefix is that of SHIM_LINK in detach.h.
const linkPrefix = ".shim-"

// link returns the path of a symbolic link to the socket of the shim that takes the next pod of such a request.
func (d Daemon) link() string {
	return filepath.Join(filepath.Dir(d.Bundle), linkPrefix+digestText(d.Digest))
}

// makeLink makes the link. The caller has the lock of the directory of sockets.
func makeLink(link, socket string) error {
	next := fmt.Sprintf("%s.%d", link, os.Getpid())
	_ = os.Remove(next) // of a start that was killed
	if err := os.Symlink(socket, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}

// RemoveLink has starts find no way to this shim; without it they are refused.
func (d Daemon) RemoveLink() {
	if target, _ := os.Readlink(d.link()); target == d.SocketPath { // by now it may be another's, which costs a shim
		_ = os.Remove(d.link())
	}
}

// removeLinks removes the links beside bundle that lead to a socket.
func removeLinks(bundle, socket string) (err error) {
	links, _ := filepath.Glob(filepath.Join(filepath.Dir(bundle), linkPrefix+"*")) // fails for a wrong pattern
	for _, link := range links {
		if target, _ := os.Readlink(link); target == socket {
			err = errors.Join(err, unixfile.Remove(link))
		}
	}
	return err
}

// MakeLink has starts find this shim again, unless they find another one.
func (d Daemon) MakeLink() { _ = os.Symlink(d.SocketPath, d.link()) }

// Accepts reports whether the shim of d is right for a pod of such a request: it is one of the installed program, and
// the options that the request would have are those of d.
func (d Daemon) Accepts(r JoinRequest) bool {
	if d.Digest == 0 || r.Digest != digestText(d.Digest) || r.Program != ownProgram() {
		return false
	}
	now, err := d.Defaults.Decode(d.Sent, d.Namespace)
	return err == nil && reflect.DeepEqual(now, d.Options)
}
