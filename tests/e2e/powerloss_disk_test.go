package e2e

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

// supply is the power of a machine. It fails after some steps of commands; from then on nothing
// succeeds and nothing changes.
type supply struct {
	mu     sync.Mutex // of the disks too
	rng    *rand.Rand
	left   int
	failed chan struct{} // closed when left is used up
}

// step uses the power up by one and says whether there is any left. mu is held.
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

// cut ends it now, if it has not failed.
func (s *supply) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.left > 0 {
		s.step()
	}
}

// lies are what a bad disk does: it ignores flushes, ignores FUA, reports a flush that failed as
// done, or writes half a block.
type lies struct{ flush, fua, failure, tear bool }

// volatileDisk is a disk with a volatile cache, below backend/disk: it carries out what that makes
// of IOs. A write goes to the cache when it begins; a flush moves to the medium what had completed
// when it began, and nothing else. When the power fails, each block keeps what the medium has or
// any one of the later writes to it, whatever becomes of others: so much may a disk that promises
// atomic blocks lose and reorder.
type volatileDisk struct {
	block, limit int64 // bytes: what is written as a whole; the longest command
	engine       string
	cache        bool // FUA is a flush that follows, as through the page cache
	lies         lies
	flushes      int // until one fails, 0: none does

	power   *supply
	fd      int // what reads see, a file in memory
	medium  []byte
	written map[int64][]*version // by block, oldest first: what the medium lacks
	clock   uint64               // of completions
}

// version is what a write left in a block. done is when it completed, 0: not yet.
type version struct {
	data []byte
	done uint64
}

// open starts the machine's disk again on what survived.
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
	f := &flight{d: d, c: c}
	f.begin()
	runtime.Gosched()
	return f.end()
}

// Start implements disk.Driver: the command ends with an operation of the ring that does nothing.
func (d *volatileDisk) Start(r *uring.Ring, file uring.File, c *disk.Command,
	then uring.Completer,
) bool {
	nop, f := uring.Nop(), &flight{d: d, c: c, then: then}
	if !r.Start(file, &nop, f) {
		return false
	}
	f.begin()
	return true
}

// flight is a command under way.
type flight struct {
	d     *volatileDisk
	c     *disk.Command
	then  uring.Completer
	first int64 // block of a write
	made  []*version
	since uint64 // when it began
}

// Complete implements uring.Completer.
func (f *flight) Complete(int32) { f.then.Complete(f.end()) }

func (f *flight) begin() {
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

// must is for a file in memory, which fails only with the model.
func must(_ int, e syscall.Errno) {
	if e != 0 {
		panic(e)
	}
}

func (f *flight) end() int32 {
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
		if f.c.FUA && !d.lies.fua {
			d.settle(f.first+int64(i), func(w *version) bool { return v == w })
		}
	}
	return 0
}

// flush moves what had completed to the medium. One that fails does so with a part, and the disk
// forgets the rest.
func (d *volatileDisk) flush(since uint64) int32 {
	if d.lies.flush {
		return 0
	}
	d.flushes--
	for _, b := range slices.Sorted(maps.Keys(d.written)) {
		covered := func(v *version) bool { return v.done != 0 && v.done <= since }
		if d.flushes == 0 && d.power.rng.IntN(2) == 0 {
			d.written[b] = slices.DeleteFunc(d.written[b], covered)
			continue
		}
		d.settle(b, covered)
	}
	if d.flushes == 0 && !d.lies.failure {
		return -int32(unix.EIO)
	}
	return 0
}

// settle moves the last version of a block that is covered to the medium.
func (d *volatileDisk) settle(b int64, covered func(*version) bool) {
	list := d.written[b]
	for i, v := range slices.Backward(list) {
		if covered(v) {
			copy(d.medium[b*d.block:], v.data)
			d.written[b] = list[i+1:]
			return
		}
	}
}

// lose leaves of the cache what chance keeps. The power has failed.
func (d *volatileDisk) lose() {
	d.power.mu.Lock()
	defer d.power.mu.Unlock()
	for _, b := range slices.Sorted(maps.Keys(d.written)) {
		if n := d.power.rng.IntN(len(d.written[b]) + 1); n > 0 {
			data := d.written[b][n-1].data
			if d.lies.tear {
				data = data[:d.block/2]
			}
			copy(d.medium[b*d.block:], data)
		}
	}
}

// at is the block as it survived.
func (d *volatileDisk) at(b int64) []byte { return d.medium[b*d.block:][:d.block] }
