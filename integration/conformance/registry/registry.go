// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package registry answers for the public registries that containerd's tests pull from, on loopback and with images
// made here of one static busybox. So the tests run unchanged and need no network.
//
// A Registry does not change after New; it may be served by any number of goroutines and starts none.
package registry

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// Registry is a read-only registry for several host names. It implements the pull half of the distribution
// specification: https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pull
type Registry struct {
	tags  map[string]digest.Digest // by full reference: host/name:tag
	blobs map[digest.Digest]blob   // manifests as well
}

type blob struct {
	mediaType string
	data      []byte
}

// New builds the images. The busybox must be static: it is the only program in them.
func New(busybox string) (*Registry, error) {
	images, err := catalogue(busybox)
	if err != nil {
		return nil, err
	}
	r := &Registry{tags: map[string]digest.Digest{}, blobs: map[digest.Digest]blob{}}
	for _, image := range images {
		if r.tags[image.reference], err = image.push(r.put); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Hosts returns the names that the registry answers for.
func (r *Registry) Hosts() []string {
	var hosts []string
	for reference := range r.tags {
		host, _, _ := strings.Cut(reference, "/")
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func (r *Registry) put(mediaType string, data []byte) digest.Digest {
	id := digest.FromBytes(data)
	r.blobs[id] = blob{mediaType: mediaType, data: data}
	return id
}

// ServeHTTP answers GET and HEAD of /v2/, /v2/NAME/manifests/TAG-OR-DIGEST and /v2/NAME/blobs/DIGEST.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if req.URL.Path == "/v2/" {
		return
	}
	parent, reference := path.Split(req.URL.Path)
	id := digest.Digest(reference)
	if name, ok := strings.CutSuffix(strings.TrimPrefix(parent, "/v2/"), "/manifests/"); ok &&
		!strings.Contains(reference, ":") {
		id = r.tags[req.Host+"/"+name+":"+reference]
	}
	b, ok := r.blobs[id]
	if !ok {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", b.mediaType)
	w.Header().Set("Docker-Content-Digest", id.String())
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(b.data))
}

// Certificate makes a certificate for the hosts, valid for a day, and returns it also as PEM: a client that trusts that
// file (SSL_CERT_FILE) trusts the certificate, which is its own authority. Its key is nowhere but in memory.
func Certificate(hosts []string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "conformance registry"},
		DNSNames:              hosts,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("certificate for %q: %w", hosts, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
