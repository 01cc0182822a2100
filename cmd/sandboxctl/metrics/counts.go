// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// series is what distinguishes histograms.
type series struct{ namespace, operation string }

// counts are histograms of one shim or of several. They are not changed once made.
type counts map[series]shim.Histogram

// shimCounts are those of one shim.
type shimCounts struct {
	pid int
	counts
}

// plus returns the sum. Shims of all versions have the buckets of the first.
func (c counts) plus(other counts) counts {
	sum := maps.Clone(c)
	if sum == nil {
		sum = counts{}
	}
	for k, h := range other {
		s, ok := sum[k]
		if !ok {
			sum[k] = h
			continue
		}
		s.Buckets = slices.Clone(s.Buckets)
		for _, b := range h.Buckets {
			i := slices.IndexFunc(s.Buckets, func(o shim.Bucket) bool { return o.Bound == b.Bound })
			if i < 0 {
				s.Buckets = append(s.Buckets, b)
				continue
			}
			s.Buckets[i].Count += b.Count
		}
		s.Sum += h.Sum
		s.Failed += h.Failed
		sum[k] = s
	}
	return sum
}

// after reports whether c counts more than later, which is then of another shim.
func (c counts) after(later counts) bool {
	for k, h := range c {
		if total(h) > total(later[k]) || h.Failed > later[k].Failed {
			return true
		}
	}
	return false
}

func total(h shim.Histogram) (n uint64) {
	for _, b := range h.Buckets {
		n += b.Count
	}
	return n
}

func (c counts) collect(send chan<- prometheus.Metric) {
	for k, h := range c {
		buckets := map[float64]uint64{}
		bounds := slices.Clone(h.Buckets)
		slices.SortFunc(bounds, func(a, b shim.Bucket) int { return int(a.Bound - b.Bound) })
		var below uint64
		for _, b := range bounds {
			if b.Bound == 0 { // the last, which is only in the count
				continue
			}
			below += b.Count
			buckets[b.Bound.Seconds()] = below
		}
		send <- prometheus.MustNewConstHistogram(opsDesc, total(h), h.Sum.Seconds(), buckets, k.namespace, k.operation)
		send <- prometheus.MustNewConstMetric(failedDesc, prometheus.CounterValue, float64(h.Failed),
			k.namespace, k.operation)
	}
}
