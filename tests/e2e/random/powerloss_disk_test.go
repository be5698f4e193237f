package random

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// supply is the power supply of a machine. It fails after a number of steps of commands; after that
// nothing succeeds and nothing changes.
type supply struct {
	mu     sync.Mutex // also of the disks
	rng    *rand.Rand
	left   int
	failed chan struct{} // closed when left is used up
}

// step counts a step and reports whether there is still power. The caller holds mu.
func (s *supply) step() bool {
	switch {
	case s.left == 0:
		return false
	case s.left == 1:
		close(s.failed)
	}
	s.left--
	return s.left > 0
}

// cut makes the power fail now, if it has not failed.
func (s *supply) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.left > 0 {
		s.step()
	}
}

// faults of a disk: it ignores flushes, ignores FUA, reports success for a failed flush, or writes
// half a block.
type faults struct{ flush, fua, failure, tear bool }

// volatileDisk is a disk with a volatile cache, below backend/disk. It executes the commands of
// backend/disk. A write enters the cache when it begins. A flush moves to the medium the writes
// that had completed when it began, and nothing else. When the power fails, each block has the
// content of the medium or of any one of the later writes to it, independent of other blocks. A
// disk that only promises atomic blocks may lose and reorder that much.
type volatileDisk struct {
	block, limit int64 // bytes of an atomic block, and of the longest command
	engine       string
	cache        bool // FUA is followed by a flush, as for the page cache
	faults       faults
	flushes      int // number of the flush that fails, 0 for none

	power   *supply
	fd      int // the content that reads return, a file in memory
	medium  []byte
	written map[int64][]*version // by block, oldest first: content not yet on the medium
	clock   uint64               // of completions
}

// version is the content of a block after a write. done is the time of its completion, 0 before.
type version struct {
	data []byte
	done uint64
}

// open starts the disk again with the surviving content.
func (d *volatileDisk) open(s *supply) (backend.Device, error) {
	fd, err := unix.MemfdCreate("volatile disk", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	d.power, d.fd, d.written = s, fd, map[int64][]*version{}
	cfg := disk.Config{
		Path: fmt.Sprintf("a disk with blocks of %d bytes", d.block), FD: fd, Block: true,
		Driver: d, Engine: disk.Engine{Name: d.engine},
		Info: backend.Info{
			Size: int64(len(d.medium)), BlockSize: int(d.block), PhysicalBlockSize: int(d.block),
			VolatileCache: true, Identity: "volatile",
		},
	}
	if !d.cache {
		cfg.Offset = int(d.block)
	}
	if _, err = unix.Pwrite(fd, d.medium, 0); err == nil {
		var dev backend.Device
		if dev, err = disk.New(cfg); err == nil {
			return dev, nil
		}
	}
	_ = unix.Close(fd)
	return nil, err
}

// Limit implements disk.Driver.
func (d *volatileDisk) Limit(backend.Op) int64 { return d.limit }

// Failure implements disk.Driver.
func (d *volatileDisk) Failure(int32) error { return backend.ErrIO }

// Do implements disk.Driver.
func (d *volatileDisk) Do(c *disk.Command) int32 {
	f := &inFlight{d: d, c: c}
	f.begin()
	runtime.Gosched()
	return f.end()
}

// Start implements disk.Driver: the command completes with a no-op of the ring.
func (d *volatileDisk) Start(r *uring.Ring, file uring.File, c *disk.Command,
	then uring.Completer,
) bool {
	nop, f := uring.Op{}, &inFlight{d: d, c: c, then: then}
	if !r.Start(file, &nop, f) {
		return false
	}
	f.begin()
	return true
}

// inFlight is a command in flight.
type inFlight struct {
	d     *volatileDisk
	c     *disk.Command
	then  uring.Completer
	first int64 // block of a write
	made  []*version
	since uint64 // time of its start
}

// Complete implements uring.Completer.
func (f *inFlight) Complete(int32) { f.then.Complete(f.end()) }

func (f *inFlight) begin() {
	d, c := f.d, f.c
	d.power.mu.Lock()
	defer d.power.mu.Unlock()
	if !d.power.step() {
		return
	}
	f.since = d.clock
	iov := c.Vectors
	switch {
	case c.Op == backend.OpWriteZeroes:
		iov = whole(make([]byte, c.Len))
	case c.Data != nil:
		iov = whole(c.Data)
	}
	switch c.Op {
	case backend.OpRead:
		must(sys.Preadv2(d.fd, iov, c.Off, 0))
	case backend.OpWrite, backend.OpWriteZeroes:
		must(sys.Pwritev2(d.fd, iov, c.Off, 0))
		f.first = c.Off / d.block
		for b := f.first; b < f.first+c.Len/d.block; b++ {
			v := &version{data: make([]byte, d.block)}
			must(sys.Preadv2(d.fd, whole(v.data), b*d.block, 0))
			f.made = append(f.made, v)
			d.written[b] = append(d.written[b], v)
		}
	}
}

func whole(b []byte) []sys.Iovec {
	iov := make([]sys.Iovec, 1)
	sys.SetIovec(&iov[0], b)
	return iov
}

// must checks operations on the file in memory, which cannot fail.
func must(_ int, e syscall.Errno) {
	if e != 0 {
		panic(e)
	}
}

func (f *inFlight) end() int32 {
	d := f.d
	d.power.mu.Lock()
	defer d.power.mu.Unlock()
	if !d.power.step() {
		return -int32(unix.EIO)
	}
	switch {
	case f.c.Op == backend.OpFlush:
		return d.flush(f.since)
	case f.c.Op == backend.OpRead:
		return 0
	}
	d.clock++
	for i, v := range f.made {
		v.done = d.clock
		if f.c.FUA && !d.faults.fua {
			d.persist(f.first+int64(i), func(w *version) bool { return v == w })
		}
	}
	return 0
}

// flush moves completed writes to the medium. A failing flush moves a part of them, and the disk
// forgets the rest.
func (d *volatileDisk) flush(since uint64) int32 {
	if d.faults.flush {
		return 0
	}
	d.flushes--
	for _, b := range slices.Sorted(maps.Keys(d.written)) {
		covered := func(v *version) bool { return v.done != 0 && v.done <= since }
		if d.flushes == 0 && d.power.rng.IntN(2) == 0 {
			d.written[b] = slices.DeleteFunc(d.written[b], covered)
			continue
		}
		d.persist(b, covered)
	}
	if d.flushes == 0 && !d.faults.failure {
		return -int32(unix.EIO)
	}
	return 0
}

// persist moves the last covered version of a block to the medium.
func (d *volatileDisk) persist(b int64, covered func(*version) bool) {
	list := d.written[b]
	for i, v := range slices.Backward(list) {
		if covered(v) {
			copy(d.medium[b*d.block:], v.data)
			d.written[b] = list[i+1:]
			return
		}
	}
}

// lose drops a random part of the cache after a power failure.
func (d *volatileDisk) lose() {
	d.power.mu.Lock()
	defer d.power.mu.Unlock()
	for _, b := range slices.Sorted(maps.Keys(d.written)) {
		if n := d.power.rng.IntN(len(d.written[b]) + 1); n > 0 {
			data := d.written[b][n-1].data
			if d.faults.tear {
				data = data[:d.block/2]
			}
			copy(d.medium[b*d.block:], data)
		}
	}
}

// at returns the surviving content of a block.
func (d *volatileDisk) at(b int64) []byte { return d.medium[b*d.block:][:d.block] }
