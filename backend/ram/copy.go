package ram

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// What is left of an IO that changes something is in its Scratch: the bytes done, and whether it counts as a waiter at the stripe of
// the next one.
const waitsBit = 1 << 63

// outcome is how far a step of an IO came.
type outcome uint8

const (
	finished outcome = iota
	paused           // it took long: others have their turn
	blocked          // loans are out
)

// position is the offset of the next byte of io.
func position(io *backend.IO) int64 { return io.Off + int64(io.Scratch&^waitsBit) }

// take locks the stripe of the next byte of io to change it, if no loan is out. Otherwise it returns nil, and if io is to wait it
// counts as a waiter from now on.
func (d *device) take(io *backend.IO, wait bool) *stripe {
	s := d.stripes.of(position(io))
	if !wait {
		if s.tryChange() {
			return s
		}
		return nil
	}
	waits := io.Scratch&waitsBit != 0
	ok := s.change(&waits)
	io.Scratch &^= waitsBit
	if ok {
		return s
	}
	if waits {
		io.Scratch |= waitsBit
	}
	return nil
}

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
				mem.Copy(b, d.b[off:])
			} else {
				clear(b)
			}
			off += int64(len(b))
		}
		s.unlock()
	}
}

// write stores what is left of the segments of io.
func (d *device) write(io *backend.IO, wait bool) outcome {
	off, end := position(io), io.Off+io.Len
	c := cursor{segs: io.Segs}
	c.skip(off - io.Off)
	for off < end {
		s := d.take(io, wait)
		if s == nil {
			return blocked
		}
		stop := min(off+int64(d.stripes.rest(off)), end)
		d.populate(off)
		for off < stop {
			off += int64(mem.Copy(d.b[off:stop], c.next(stop-off)))
		}
		s.unlock()
		io.Scratch = uint64(off - io.Off)
	}
	return finished
}

// zero makes what is left of the range of io read as zeroes. A step of it passes over chunks that were never written, at most
// longStep, and ends with the first one that costs time.
func (d *device) zero(io *backend.IO, wait bool) (outcome, error) {
	off, end := position(io), io.Off+io.Len
	for most := off + longStep; off < min(end, most); {
		stop := min(off&^(chunk-1)+chunk, end)
		if io.Scratch&waitsBit == 0 && !d.written[off>>chunkShift].Load() {
			off = stop
			io.Scratch = uint64(off - io.Off)
			continue
		}
		if ok, err := d.zeroPart(io, stop, wait); err != nil {
			return finished, err
		} else if !ok {
			return blocked, nil
		}
		off = stop
		break
	}
	if off < end {
		return paused, nil
	}
	return finished, nil
}

// zeroPart goes on up to end, which is in the chunk of the next byte. It returns false if it has to wait.
func (d *device) zeroPart(io *backend.IO, end int64, wait bool) (bool, error) {
	off := position(io)
	if io.Scratch&waitsBit == 0 && end-off == d.chunkLen(off) {
		if ok, err := d.free(off); ok || err != nil {
			io.Scratch = uint64(end - io.Off)
			return true, err
		}
	}
	return d.clear(io, end, wait), nil
}

// clear overwrites the range of io up to end, which is in the chunk of the next byte, with zeroes. It returns false if it has to wait.
func (d *device) clear(io *backend.IO, end int64, wait bool) bool {
	for off := position(io); off < end; {
		s := d.take(io, wait)
		if s == nil {
			return false
		}
		stop := min(off+int64(d.stripes.rest(off)), end)
		if d.written[off>>chunkShift].Load() {
			clear(d.b[off:stop])
		}
		s.unlock()
		off = stop
		io.Scratch = uint64(off - io.Off)
	}
	return true
}

// free gives the memory of the chunk that starts at off back. It returns false if that cannot be: somebody has a loan, or a device
// has it registered.
func (d *device) free(off int64) (bool, error) {
	n := d.chunkLen(off)
	if !d.stripes.tryRange(off, off+n) {
		return false, nil
	}
	defer d.stripes.unlockRange(off, off+n)
	w := &d.written[off>>chunkShift]
	if !w.Load() {
		return true, nil
	}
	switch err := d.region.Discard(int(off), int(n)); {
	case errors.Is(err, mem.ErrPinned):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ram device: %w: %w", backend.ErrIO, err)
	}
	w.Store(false)
	d.region.Charge(-n)
	return true, nil
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

// skip passes over n bytes.
func (c *cursor) skip(n int64) {
	for n > 0 {
		n -= int64(len(c.next(n)))
	}
}
