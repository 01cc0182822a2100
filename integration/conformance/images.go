// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"sandbox.internal/shim/integration/harness"
)

// host is the registry from which containerd's tests pull.
const host = "ghcr.io"

// Users and groups as in Docker's busybox: tests know some of them by name and by number.
const (
	passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
bin:x:2:2:bin:/bin:/bin/false
sys:x:3:3:sys:/dev:/bin/false
sync:x:4:100:sync:/bin:/bin/sync
mail:x:8:8:mail:/var/spool/mail:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
operator:x:37:37:Operator:/var:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
`
	group = "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nmail:x:8:\nwww-data:x:33:\noperator:x:37:\nusers:x:100:\n" +
		"nobody:x:65534:\n"
)

// listen stands in for nc: as a container's first process it has to end with 143 on SIGTERM, which a first process
// without a handler does not get at all.
const listen = `#!/bin/sh
trap 'exit 143' TERM
busybox nc "$@" &
wait $!
`

// image is one that containerd's tests name (integration/images/image_list.go), as far as they run containers of it.
type image struct {
	name    string
	layers  [][]harness.File // above that of busybox
	command string
	volume  string
}

var images = []image{
	{name: "containerd/busybox:1.36", command: "sh"},
	{ // for its many layers
		name: "containerd/volume-copy-up:2.2", command: "sh", volume: "/test_dir",
		layers: [][]harness.File{
			{harness.Dir("test_dir", 0o755), harness.Regular("test_dir/test_file", 0o644, "test_content\n")},
			{harness.Dir("other_dir", 0o755), harness.Regular("other_dir/other_file", 0o644, "other_content\n")},
		},
	},
	{ // for its owners and its setuid program
		name: "containerd/volume-ownership:2.1", command: "bash", volume: "/test_dir",
		layers: [][]harness.File{{
			harness.Regular("bin/bash", 0o755, "#!/bin/sh\nexec sh \"$@\"\n"),
			harness.Regular("usr/bin/passwd", 0o4755, "#!/bin/sh\n"),
			owned(harness.Dir("test_dir", 0o755), 65534),
		}},
	},
}

func owned(f harness.File, id int) harness.File {
	f.Uid, f.Gid = id, id
	return f
}

// base is one static binary under the name of every applet. The names are hard links: a test masks one of them, and
// through a symbolic link that would mask them all.
func base(busybox string) ([]harness.File, error) {
	binary, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	var files []harness.File
	for dir := range strings.FieldsSeq("bin dev etc lib run sys usr usr/bin var var/run proc") {
		files = append(files, harness.Dir(dir, 0o755))
	}
	files = append(files, harness.Dir("root", 0o700), harness.Dir("tmp", 0o1777), owned(harness.Dir("home", 0o755), 65534),
		owned(harness.Dir("usr/sbin", 0o755), 1), owned(harness.Dir("var/www", 0o755), 33),
		harness.Regular("etc/passwd", 0o644, passwd), harness.Regular("etc/group", 0o644, group),
		harness.Regular("bin/busybox", 0o755, string(binary)), harness.Regular("bin/nc", 0o755, listen))
	applets, err := harness.Applets(busybox)
	for _, applet := range applets {
		if applet != "nc" {
			files = append(files, harness.File{
				Header: tar.Header{Typeflag: tar.TypeLink, Name: "bin/" + applet, Linkname: "bin/busybox", Mode: 0o755},
			})
		}
	}
	return files, err
}

// serve answers for the registry, under its name and on the port that clients use, until the process ends.
func serve(busybox string) error {
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if err := push(handler, busybox); err != nil {
		return err
	}
	certificate, err := trust()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:443")
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	go func() {
		fmt.Fprintln(os.Stderr, "conformance: registry:", server.ServeTLS(listener, "", ""))
	}()
	return nil
}

// push makes the images and puts them into the registry.
func push(handler http.Handler, busybox string) error {
	lowest, err := base(busybox)
	if err != nil {
		return err
	}
	plain := httptest.NewServer(handler)
	defer plain.Close()
	for _, i := range images {
		config := v1.Config{
			Cmd: []string{i.command}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		}
		if i.volume != "" {
			config.Volumes = map[string]struct{}{i.volume: {}}
		}
		made, err := harness.MakeImage(config, append([][]harness.File{lowest}, i.layers...)...)
		if err != nil {
			return err
		}
		reference, err := name.NewTag(strings.TrimPrefix(plain.URL, "http://")+"/"+i.name, name.Insecure)
		if err != nil {
			return err
		}
		if err := remote.Write(reference, made); err != nil {
			return fmt.Errorf("push %s: %w", i.name, err)
		}
	}
	return nil
}

// trust makes a certificate for the registry and writes the file by which clients trust it (SSL_CERT_FILE): it is its
// own authority. Its key is nowhere but in memory.
func trust() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate for %s: %w", host, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		os.WriteFile(trusted, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}
