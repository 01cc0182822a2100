// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package stats reads the metrics of a cgroup as the messages of github.com/containerd/cgroups/v3:
// io.containerd.cgroups.v1.Metrics on v1 and hybrid, io.containerd.cgroups.v2.Metrics on v2. containerd/cgroups opens
// every file for every call, which takes seven times the CPU time (1.28 against 0.19 ms).
//
//   - No limit: on v2 the largest number of the field's type; on v1 0 for pids, and the kernel's number for memory.
//   - Controllers that the cgroup lacks, pressure that is not accounted, and RDMA are left out of the message.
//   - A number that the kernel lacks is 0, such as memory.peak before Linux 5.19.
//   - Unknown keys and lines are skipped. A known key without a number is errdefs.ErrInternal.
package stats

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"reflect"
	"strings"
	"sync"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/cgroup"
)

// Metrics is a *Metrics of cgroup1/stats or of cgroup2/stats.
type Metrics interface{ proto.Message }

// Reader reads the metrics of one cgroup. It is safe for concurrent use. It keeps its files open from the first Read
// until Close or until the cgroup is gone, since opening takes six times as long as reading. After ENODEV (the cgroup
// or a controller is gone) it opens them again, once.
type Reader struct {
	cgroup *cgroup.Cgroup

	mu sync.Mutex // held while files are read or closed
	// +checklocks:mu
	open []openFile
}

// openFile is a file that a Reader keeps. A shim can have thousands, so it has no os.File.
type openFile struct {
	*controlFile
	name  string // that of the two that exists
	fd    int
	first []byte // the first text of a file without a field
}

// buffers has what files are read into, of which there are as many as calls at once.
var buffers = sync.Pool{New: func() any { return new(make([]byte, 4096)) }} // +checklocksignore: it needs no lock

// New returns a reader of c. A cgroup that is gone gives errdefs.ErrNotFound.
func New(c *cgroup.Cgroup) (*Reader, error) {
	r := &Reader{cgroup: c}
	if !c.Exists() {
		return nil, r.notFound()
	}
	return r, nil
}

// Close closes the files. A Read after it opens them again.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeLocked()
}

// +checklocks:r.mu
func (r *Reader) closeLocked() {
	for _, f := range r.open {
		_ = unix.Close(f.fd) // nothing was written
	}
	r.open = nil
}

// Read returns the current metrics. A cgroup that is gone gives errdefs.ErrNotFound.
func (r *Reader) Read() (Metrics, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.readLocked()
	if errors.Is(err, errStale) {
		r.closeLocked()
		m, err = r.readLocked()
	}
	// Checked after the read: if the cgroup exists now, nothing is missing because of its removal.
	if errors.Is(err, errStale) || !r.cgroup.Exists() {
		return nil, r.notFound()
	}
	if err != nil {
		return nil, fmt.Errorf("metrics of cgroup %s: %w", r.cgroup, err)
	}
	return m, nil
}

func (r *Reader) notFound() error {
	return fmt.Errorf("metrics of cgroup %s: %w", r.cgroup, errdefs.ErrNotFound)
}

// errStale is the error of a control file whose cgroup was removed or whose controller was disabled.
const errStale = unix.ENODEV

// readLocked returns errStale if the open files are no longer the cgroup's.
// +checklocks:r.mu
func (r *Reader) readLocked() (Metrics, error) {
	var m Metrics = &v1.Metrics{}
	all, unlimited := filesV1, uint64(0)
	if r.cgroup.Unified() {
		m, all, unlimited = &v2.Metrics{}, filesV2, math.MaxUint64
	}
	if len(r.open) == 0 {
		if err := r.openLocked(all(r.cgroup)); err != nil {
			r.closeLocked()
			return nil, err
		}
	}
	buf := buffers.Get().(*[]byte) //nolint:forcetypeassert // it has nothing else
	defer buffers.Put(buf)
	for i := range r.open {
		f := &r.open[i]
		text, err := f.text(buf)
		switch {
		case errors.Is(err, unix.EOPNOTSUPP): // pressure on a kernel that accounts none (psi=0)
			continue
		case err != nil:
			return nil, err
		case f.field != "":
			if field := f.in(m); field.IsValid() {
				err = parse(text, field, unlimited)
			}
		case f.first == nil:
			f.first = bytes.Clone(text)
		case !bytes.Equal(f.first, text):
			return nil, errStale
		}
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", f.name, err)
		}
	}
	return m, nil
}

// openLocked opens the files that exist.
// +checklocks:r.mu
func (r *Reader) openLocked(all []*controlFile) error {
	r.open = make([]openFile, 0, len(all))
	for _, f := range all {
		name := f.name
		fd, err := openControl(r.cgroup.File(name))
		if errors.Is(err, fs.ErrNotExist) && f.older != "" {
			name = f.older
			fd, err = openControl(r.cgroup.File(name))
		}
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errStale):
			continue
		case err != nil:
			return err
		}
		r.open = append(r.open, openFile{f, name, fd, nil})
	}
	return nil
}

// openControl opens a control file, which Go's poller does not watch: it would wake up for memory.events and the
// pressure files.
func openControl(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// text returns the contents of a file, which are valid until buf is used again. One read returns them: the kernel
// generates the text anew for each.
func (f *openFile) text(buf *[]byte) ([]byte, error) {
	for {
		n, err := unix.Pread(f.fd, *buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: f.name, Err: err}
		case n < len(*buf):
			return (*buf)[:n], nil
		default: // there may be more
			*buf = make([]byte, 2*len(*buf))
		}
	}
}

// fieldPath returns the indexes of a dotted path of fields.
func fieldPath(message reflect.Type, field string) (path []int) {
	for name := range strings.SplitSeq(field, ".") {
		for message.Kind() != reflect.Struct { // a pointer to a message, or a list of pointers
			message = message.Elem()
		}
		if f, ok := message.FieldByName(name); ok {
			path, message = append(path, f.Index[0]), f.Type
		}
	}
	return path
}

// in returns the field of m, and makes the messages around it. It is invalid if f is a part of a message that m lacks.
func (f *openFile) in(m Metrics) reflect.Value {
	v := reflect.ValueOf(m)
	for _, i := range f.path {
		if v.IsNil() {
			if f.part {
				return reflect.Value{}
			}
			v.Set(newMessage(v.Type().Elem()))
		}
		if v = v.Elem().Field(i); f.size != "" && v.Kind() == reflect.Slice {
			v = entry(v, f.size)
		}
	}
	return v
}

// newMessage makes a message, on v1 with all parts of CPU and memory, which consumers expect (containerd
// core/metrics/cgroups/v1, cpu.go).
func newMessage(t reflect.Type) reflect.Value {
	m := reflect.New(t)
	switch m := m.Interface().(type) {
	case *v1.CPUStat:
		m.Usage, m.Throttling = &v1.CPUUsage{}, &v1.Throttle{}
	case *v1.MemoryStat:
		m.Usage, m.Swap, m.Kernel, m.KernelTCP = &v1.MemoryEntry{}, &v1.MemoryEntry{}, &v1.MemoryEntry{}, &v1.MemoryEntry{}
	}
	return m
}

// entry returns the entry of list for a size of huge pages, and appends one if there is none.
func entry(list reflect.Value, size string) reflect.Value {
	const field = "Pagesize"
	for i := range list.Len() {
		if e := list.Index(i); e.Elem().FieldByName(field).String() == size {
			return e
		}
	}
	e := newMessage(list.Type().Elem().Elem())
	e.Elem().FieldByName(field).SetString(size)
	list.Set(reflect.Append(list, e))
	return e
}
