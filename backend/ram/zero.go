package ram

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/backend"
)

// zero makes the rest of the range of io read as zeroes: whole frames are taken out of their slots
// and freed. One step skips at most longStep of chunks without frames, and ends after stepBytes of
// the first chunk that has some.
func (c *channel) zero(io *backend.IO) (outcome, error) {
	d := c.d
	off, end := position(io), io.Off+io.Len
	for most := off + longStep; off < min(end, most); {
		stop := d.chunkEnd(off, end)
		if d.mapped[off>>chunkShift].Load() != 0 {
			stop = min(stop, off+stepBytes)
			if ok, err := c.zeroPart(io, stop); err != nil {
				return finished, err
			} else if !ok {
				return blocked, nil
			}
			most = stop
		}
		off = stop
		io.Scratch = uint64(off - io.Off)
	}
	if off < end {
		return yielded, nil
	}
	return finished, nil
}

// zeroPart continues up to end, in the chunk of the next byte. It returns false if it is blocked.
func (c *channel) zeroPart(io *backend.IO, end int64) (ok bool, err error) {
	d := c.d
	var freed run
	for off := position(io); off < end; {
		stop := d.frameEnd(off, end)
		if d.whole(off, stop) {
			if frame, ok := c.drop(off); ok && freed.n > 0 && frame == freed.first+freed.n {
				freed.n++
			} else if ok {
				err = errors.Join(err, d.freeRun(freed))
				freed = run{frame, 1}
			}
		} else if !c.clear(off, stop) {
			return false, errors.Join(err, d.freeRun(freed))
		}
		off = stop
		io.Scratch = uint64(off - io.Off)
	}
	return true, errors.Join(err, d.freeRun(freed))
}

// clear overwrites [off, end), within a frame, with zeroes. It returns false if it is blocked.
func (c *channel) clear(off, end int64) bool {
	if c.d.slotOf(off).load().frame() < 0 {
		return true
	}
	e, ok := c.edit(off, end)
	if ok {
		clear(e.b)
		c.finish(&e)
	}
	return ok
}

// drop empties the slot at off and returns its frame, unless there is none for the caller.
func (c *channel) drop(off int64) (int64, bool) {
	d, s := c.d, c.d.slotOf(off)
	if s.load().frame() < 0 {
		return 0, false
	}
	if s.lock().frame() < 0 {
		s.unlock()
		return 0, false
	}
	was := s.replace(-1)
	d.mapped[off>>chunkShift].Add(-1) // the frame can no longer be found
	if n := was.readers(); n > 0 {
		d.frames.spare.Add(-1)
		if !d.frames.leaveToReaders(was.frame(), n) {
			return 0, false
		}
		d.frames.spare.Add(1)
	}
	return was.frame(), true
}

// freeRun frees frames that are no longer in a slot, and their memory.
func (d *device) freeRun(r run) (err error) {
	if r.n == 0 {
		return nil
	}
	d.frames.each(r.first, r.n, func(first, n int64) {
		if e := d.frames.discard(first, n); e != nil {
			err = e
		}
		d.frames.free(first, n)
	})
	d.blocked.Wake()
	return err
}
