// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics serves what the containers of a node use to Prometheus, and how long the shims' operations took.
//
// A scrape takes a snapshot, which asks each shim of this project for its counters. Scrapes are one at a time, each for
// all requests that came before it began: one that waits longer than Prometheus does is answered with status 503.
package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/cobra"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/node"
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

There is no TLS and no authentication: listen on an address that only Prometheus can reach,
or put a reverse proxy in front. A scrape takes at most --timeout for containerd, as long
for all shims, and the time to read the cgroups. containerd_sandbox_shim_up is 0 for a shim
that hangs, and containerd_sandbox_up is 0 while containerd does not answer.

What a shim measured after the last scrape is lost when it ends.`,
		Example: "  sandboxctl metrics --listen 127.0.0.1:9475",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := net.SplitHostPort(listen); err != nil {
				return fmt.Errorf("--listen %q: must be ADDRESS:PORT, such as 127.0.0.1:9475 or :9475", listen)
			}
			n, err := o.OpenLater()
			if err != nil {
				return err
			}
			e := newExporter(n, cmd.ErrOrStderr())
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
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		const buffer = 64 << 10 // else megabytes for each client that does not read
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(buffer) // without it the kernel's default stays
		}
		return ctx
	}
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
	turns   *turns // one scrape at a time uses the rest
	node    *node.Node
	metrics []metric
	shims   map[string]shimCounts // as of the last scrape, by the socket
	gone    counts                // of shims that have ended
	ooms    ooms
	log     io.Writer
	failure string // of the last scrape; empty: containerd answered
}

func newExporter(n *node.Node, log io.Writer) *Exporter {
	n.CountAll()
	e := &Exporter{node: n, metrics: containerMetrics(), shims: map[string]shimCounts{}, log: log}
	e.turns = newTurns(e.gather)
	return e
}

func (e *Exporter) close() {
	e.turns.close()
	_ = e.node.Close() // what was asked is answered
}

// ServeHTTP implements [http.Handler].
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !e.turns.requests.TryAcquire(1) {
		http.Error(w, "too many requests at a time", http.StatusServiceUnavailable)
		return
	}
	defer e.turns.requests.Release(1)
	ctx := r.Context()
	if patience, ok := patience(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds")); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	a, err := e.turns.wait(ctx)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case a.err != nil:
		http.Error(w, a.err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", string(textFormat))
		e.turns.write(w, a)
	}
}

// textFormat is what every Prometheus reads.
var textFormat = expfmt.NewFormat(expfmt.TypeTextPlain)

// gather does one scrape.
func (e *Exporter) gather(ctx context.Context) ([]byte, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(scrape{e, ctx})
	families, err := registry.Gather()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, textFormat)
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}

// patience returns how long Prometheus waits, according to the header of its request. The bounds keep clients from
// having an answer cut off on purpose, or overflowing a duration.
func patience(header string) (time.Duration, bool) {
	const shortest, longest = time.Second, 5 * time.Minute
	s, err := strconv.ParseFloat(header, 64)
	if err != nil || !(s > 0) { // NaN is not, either
		return 0, false
	}
	return time.Duration(max(shortest.Seconds(), min(s, longest.Seconds())) * float64(time.Second)), true
}

// scrape is the [prometheus.Collector] of one scrape. It describes nothing beforehand: which series there are depends
// on the containers.
type scrape struct {
	exporter *Exporter
	ctx      context.Context //nolint:containedctx // of one scrape, which the interface has no argument for
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
	snapshot, err := e.node.Snapshot(ctx)
	e.tell(err)
	if err == nil {
		answered, silent := e.node.Counters()
		e.take(answered, silent)
		collectContainers(snapshot, e.metrics, send)
		collectShims(snapshot, silent, send)
		e.ooms.collect(snapshot, e.node.TakeOOMs(), send)
	}
	e.sum().collect(send)
	return err == nil
}

// tell logs why containerd does not answer, once for each reason.
func (e *Exporter) tell(err error) {
	failure := ""
	if err != nil {
		failure = cli.PrintableText(err.Error())
	}
	if failure != "" && failure != e.failure {
		fmt.Fprintln(e.log, failure)
	}
	e.failure = failure
}

// take stores what shims have counted. One that does not answer keeps its previous counts.
func (e *Exporter) take(answered map[string]node.Counters, silent map[string]bool) {
	for path, of := range answered {
		now := counts{}
		for _, h := range of.Histograms {
			now[series{of.Namespace, h.Operation}] = h
		}
		// A container that is started again has a shim at the same address.
		if before := e.shims[path]; before.pid != of.Pid || before.after(now) {
			e.gone = e.gone.plus(before.counts)
		}
		e.shims[path] = shimCounts{of.Pid, now}
	}
	for path, last := range e.shims {
		if _, alive := answered[path]; !alive && !silent[path] {
			e.gone = e.gone.plus(last.counts)
			delete(e.shims, path)
		}
	}
}

func (e *Exporter) sum() counts {
	all := counts{}.plus(e.gone)
	for _, c := range e.shims {
		all = all.plus(c.counts)
	}
	return all
}
