// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// fake is a registry of a script that lists two applets, as busybox does.
func fake(t *testing.T) *Registry {
	t.Helper()
	busybox := filepath.Join(t.TempDir(), "busybox")
	if err := os.WriteFile(busybox, []byte("#!/bin/sh\necho busybox sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := New(busybox)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// answer asks the registry as a client asks it under that host name.
func answer(r *Registry, method, host, path string) *http.Response {
	req := httptest.NewRequest(method, "https://"+host+path, nil)
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w.Result()
}

func read(t *testing.T, resp *http.Response) []byte {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRegistry_AnswersWhatAClientAsks(t *testing.T) {
	r := fake(t)
	id := r.tags["ghcr.io/containerd/busybox:1.36"].String()
	for _, tc := range []struct {
		name, method, host, path string
		want                     int
	}{
		{"the version check", "GET", "ghcr.io", "/v2/", 200},
		{"a manifest by tag", "HEAD", "ghcr.io", "/v2/containerd/busybox/manifests/1.36", 200},
		{"a manifest by digest", "GET", "ghcr.io", "/v2/containerd/busybox/manifests/" + id, 200},
		{"a tag that is not there", "GET", "ghcr.io", "/v2/containerd/busybox/manifests/1.37", 404},
		{"an image of another host", "GET", "docker.io", "/v2/containerd/busybox/manifests/1.36", 404},
		{"a blob that is not there", "GET", "ghcr.io", "/v2/containerd/busybox/blobs/sha256:00", 404},
		{"an upload", "POST", "ghcr.io", "/v2/containerd/busybox/blobs/uploads/", 405},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := answer(r, tc.method, tc.host, tc.path).StatusCode; got != tc.want {
				t.Errorf("%s %s%s = %d, want %d", tc.method, tc.host, tc.path, got, tc.want)
			}
		})
	}
}

func TestImage_EveryPartCanBePulled(t *testing.T) {
	r := fake(t)
	var manifest ocispec.Manifest
	data := read(t, answer(r, "GET", "ghcr.io", "/v2/containerd/volume-copy-up/manifests/2.2"))
	if err := json.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	if got, want := len(manifest.Layers), 3; got != want {
		t.Errorf("layers = %d, want %d", got, want)
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		resp := answer(r, "GET", "ghcr.io", "/v2/containerd/volume-copy-up/blobs/"+d.Digest.String())
		if got := digest.FromBytes(read(t, resp)); got != d.Digest {
			t.Errorf("blob %s has digest %s", d.Digest, got)
		}
		if got := resp.Header.Get("Content-Type"); got != d.MediaType {
			t.Errorf("type of blob %s = %q, want %q", d.Digest, got, d.MediaType)
		}
	}
}

func TestImage_HasTheSameDigestEachTime(t *testing.T) {
	for reference, want := range fake(t).tags {
		if got := fake(t).tags[reference]; got != want {
			t.Errorf("%s = %s, then %s", reference, got, want)
		}
	}
}

func TestLayer_HasParentsFirstAndLinksLast(t *testing.T) {
	_, packed, err := tree{
		"/b/a":    hardlink("/z/file"),
		"/z/file": text(0o4755, "x"),
	}.layer()
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Name)
	}
	if want := []string{"b/", "z/", "z/file", "b/a"}; !slices.Equal(got, want) {
		t.Errorf("entries = %q, want %q", got, want)
	}
}

func TestCertificate_IsItsOwnAuthority(t *testing.T) {
	cert, pem, err := Certificate([]string{"ghcr.io"})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatalf("not a certificate: %s", pem)
	}
	server := httptest.NewUnstartedServer(fake(t))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:    roots,
		ServerName: "ghcr.io",
	}}}
	resp, err := client.Get(server.URL + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status = %s, want 200", resp.Status)
	}
}
