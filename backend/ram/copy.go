package ram

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// read fills the segments of io. A granule is locked once, however many segments it goes to.
func (d *device) read(io *backend.IO) {
	c := cursor{segs: io.Segs}
	for off, end := io.Off, io.Off+io.Len; off < end; {
		stop := min(off+int64(d.stripes.rest(off)), end)
		s := d.stripes.of(off)
		s.lock()
		written := d.written[off>>chunkShift].Load()
		for off < stop {
			b := c.next(stop - off)
			if written {
				copy(b, d.b[off:])
			} else {
				clear(b)
			}
			off += int64(len(b))
		}
		s.unlock()
	}
}

// write stores the segments of io.
func (d *device) write(io *backend.IO) {
	c := cursor{segs: io.Segs}
	for off, end := io.Off, io.Off+io.Len; off < end; {
		stop := min(off+int64(d.stripes.rest(off)), end)
		s := d.stripes.of(off)
		s.lock()
		d.populate(off)
		for off < stop {
			off += int64(copy(d.b[off:stop], c.next(stop-off)))
		}
		s.unlock()
	}
}

// cursor walks through the memory of segments.
type cursor struct {
	segs []mem.Segment
	b    []byte
}

// next is the next piece of memory, at most n bytes and at least one. The caller knows that there is more.
func (c *cursor) next(n int64) []byte {
	for len(c.b) == 0 {
		c.b, c.segs = c.segs[0].B, c.segs[1:]
	}
	b := c.b[:min(n, int64(len(c.b)))]
	c.b = c.b[len(b):]
	return b
}

// populate notes that the chunk at off has been written. The caller holds a stripe of the chunk.
func (d *device) populate(off int64) {
	w := &d.written[off>>chunkShift]
	if !w.Load() && !w.Swap(true) {
		d.region.Charge(d.chunkLen(off))
	}
}

// chunkLen is the length of the chunk at off; the last one may be short.
func (d *device) chunkLen(off int64) int64 {
	start := off &^ (chunk - 1)
	return min(chunk, d.info.Size-start)
}

// zero makes [off, end) read as zeroes and returns how far it came: it stops after the first chunk that cost time.
func (d *device) zero(off, end int64) (int64, error) {
	for off < end {
		stop := min(off&^(chunk-1)+chunk, end)
		at := off
		off = stop
		if !d.written[at>>chunkShift].Load() {
			continue
		}
		if stop-at == d.chunkLen(at) {
			if err := d.free(at); err != nil {
				return stop, err
			}
			break
		}
		d.clear(at, stop)
		break
	}
	return off, nil
}

// clear overwrites [off, end), which lies in one chunk, with zeroes.
func (d *device) clear(off, end int64) {
	for off < end {
		stop := min(off+int64(d.stripes.rest(off)), end)
		s := d.stripes.of(off)
		s.lock()
		if d.written[off>>chunkShift].Load() {
			clear(d.b[off:stop])
		}
		s.unlock()
		off = stop
	}
}

// free gives the memory of the chunk that starts at off back.
func (d *device) free(off int64) error {
	n := d.chunkLen(off)
	d.stripes.lockRange(off, off+n)
	defer d.stripes.unlockRange(off, off+n)
	w := &d.written[off>>chunkShift]
	if !w.Load() {
		return nil
	}
	if err := d.region.Discard(int(off), int(n)); err != nil {
		return fmt.Errorf("ram device: %w: %w", backend.ErrIO, err)
	}
	w.Store(false)
	d.region.Charge(-n)
	return nil
}
