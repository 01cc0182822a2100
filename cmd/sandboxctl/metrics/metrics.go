// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics serves what the containers of a node use to Prometheus, and how long the shims' operations took.
//
// A scrape takes a snapshot, and asks each shim of this project for its histograms, all with one deadline. Scrapes are
// one at a time. Locks: Exporter.mu is held over a scrape, and guards all else.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// Command serves until it is interrupted.
func Command(o *cli.Options) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "Serve metrics of this node's containers to Prometheus",
		Long: `Serve metrics at http://ADDRESS/metrics for Prometheus, until interrupted: what top shows
of each container, and histograms of create, start, exec and delete as the shims measured
them, by namespace. Series have the labels namespace, pod and container, so there are as
many as there are containers.

There is neither TLS nor a password: listen where Prometheus alone comes by, or put what
has them before it. A scrape takes at most --timeout and what it takes to read the cgroups,
also when shims hang; containerd_sandbox_shim_up tells these.

A shim that ends between two scrapes takes with it what it measured since the first.`,
		Example: "  sandboxctl metrics --listen 127.0.0.1:9475",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := net.SplitHostPort(listen); err != nil {
				return fmt.Errorf("--listen %q: must be ADDRESS:PORT, such as 127.0.0.1:9475 or :9475", listen)
			}
			n, err := o.Open(cmd.Context())
			if err != nil {
				return err
			}
			e := &Exporter{node: n, timeout: o.Timeout, metrics: containerMetrics(), shims: map[string]counts{}}
			defer e.close()
			l, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", listen)
			if err != nil {
				return fmt.Errorf("--listen %q: %w", listen, err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "metrics at http://%s/metrics\n", l.Addr())
			return serve(cmd.Context(), l, e)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9475", "address and port to listen on")
	return cmd
}

// serve answers on l until ctx ends.
func serve(ctx context.Context, l net.Listener, e *Exporter) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", e)
	const patience = 10 * time.Second
	server := &http.Server{Handler: mux, ReadHeaderTimeout: patience, IdleTimeout: 10 * patience}
	stopped := make(chan struct{})
	go func() { // ends with ctx, and is joined below
		defer close(stopped)
		<-ctx.Done()
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(short) // a scrape that takes longer is cut off
	}()
	err := server.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return err
}

// Exporter is the handler of /metrics.
type Exporter struct {
	mu sync.Mutex
	// +checklocks:mu
	node *node.Node
	// +checklocks:mu
	timeout time.Duration
	// +checklocks:mu
	metrics []metric
	// +checklocks:mu
	shims map[string]counts // as of the last scrape, by the socket
	// +checklocks:mu
	gone counts // of shims that have ended
}

func (e *Exporter) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.node.Close() // what was asked is answered
}

// ServeHTTP implements [http.Handler].
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	// Prometheus says how long it waits.
	if s, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64); err == nil && s > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(s*float64(time.Second)))
		defer cancel()
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(scrape{e, ctx})
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// scrape is the [prometheus.Collector] of one scrape. It describes nothing beforehand: which series there are depends
// on the containers.
type scrape struct {
	exporter *Exporter
	ctx      context.Context //nolint:containedctx // of one request, which the interface has no argument for
}

// Describe implements [prometheus.Collector].
func (scrape) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (s scrape) Collect(send chan<- prometheus.Metric) {
	start := time.Now()
	up := s.exporter.collect(s.ctx, send)
	send <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, truth(up))
	send <- prometheus.MustNewConstMetric(tookDesc, prometheus.GaugeValue, time.Since(start).Seconds())
}

// collect reports whether containerd answered. What was counted by shims is sent anyway.
func (e *Exporter) collect(ctx context.Context, send chan<- prometheus.Metric) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	snapshot, err := e.node.Snapshot(ctx)
	if err == nil {
		collectContainers(snapshot, e.metrics, send)
		collectShims(snapshot, e.askShims(ctx), send)
	}
	e.sum().collect(send)
	return err == nil
}

// atOnce is how many shims are asked at the same time.
const atOnce = 16

// askShims takes the counts of all shims. A shim that does not answer keeps those of before. It returns the addresses
// of these.
//
// +checklocks:e.mu
func (e *Exporter) askShims(ctx context.Context) (silent map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	addresses := e.node.Shims()
	answers := make([]counts, len(addresses))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, a := range addresses {
		group.Go(func() error {
			answers[i] = ask(ctx, a)
			return nil
		})
	}
	_ = group.Wait() // a shim that does not answer has none
	silent = e.node.Silent()
	alive := map[string]bool{}
	for i, a := range addresses {
		alive[a.Path] = true
		if answers[i] == nil {
			silent[a.Path] = true
			continue
		}
		if before := e.shims[a.Path]; before.after(answers[i]) { // another one at the same address
			e.gone = e.gone.plus(before)
		}
		e.shims[a.Path] = answers[i]
	}
	for path, last := range e.shims {
		if !alive[path] && !silent[path] {
			e.gone = e.gone.plus(last)
			delete(e.shims, path)
		}
	}
	return silent
}

// ask returns nil if the shim does not answer.
func ask(ctx context.Context, a node.ShimAddress) counts {
	client, err := shim.Dial(ctx, a.Address)
	if err != nil {
		return nil
	}
	defer client.Close()
	histograms, _, err := client.Histograms(ctx)
	if err != nil {
		return nil
	}
	c := counts{}
	for _, h := range histograms {
		c[series{a.Namespace, h.Operation}] = h
	}
	return c
}

// +checklocks:e.mu
func (e *Exporter) sum() counts {
	all := counts{}.plus(e.gone)
	for _, c := range e.shims {
		all = all.plus(c)
	}
	return all
}
