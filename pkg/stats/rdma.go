// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"fmt"
	"math"

	"github.com/containerd/errdefs"
)

// rdmaLine is a line of rdma.current or rdma.max, which have one form on v1 and v2 (cgroup-v1/rdma.rst):
//
//	mlx4_0 hca_handle=2 hca_object=max
type rdmaLine struct {
	device           string
	handles, objects uint32
}

// parseRDMA appends what entry makes of each line. Unlimited is math.MaxUint32.
func parseRDMA[E any](text []byte, entry func(rdmaLine) E) ([]E, error) {
	var entries []E
	for line := range bytes.Lines(text) {
		device, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if len(device) == 0 {
			continue
		}
		l := rdmaLine{device: string(device)}
		for word := range bytes.FieldsSeq(rest) {
			if err := l.parse(word); err != nil {
				return nil, fmt.Errorf("%s: %w", device, err)
			}
		}
		entries = append(entries, entry(l))
	}
	return entries, nil
}

func (l *rdmaLine) parse(word []byte) error {
	key, value, _ := bytes.Cut(word, []byte("="))
	var to *uint32
	switch string(key) {
	case "hca_handle":
		to = &l.handles
	case "hca_object":
		to = &l.objects
	default:
		return nil
	}
	n, err := number(value, math.MaxUint32)
	if err == nil && n > math.MaxUint32 {
		err = fmt.Errorf("%d: must be at most %d: %w", n, uint32(math.MaxUint32), errdefs.ErrInternal)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	*to = uint32(n)
	return nil
}
