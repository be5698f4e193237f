package ram

// The frames that zero-copy reads hold may all be replaced while they are being read, and each
// replacement takes a spare frame. Before the spare frames are used up, reads are refused and
// copied instead. Otherwise hosts that do not receive their data would stop the writes of others.

// readLimit is the number of frames that zero-copy reads may hold: half of the spare frames is for
// frame caches and zero-copy writes, and an eighth is left for writes to frames that are being
// read.
func (f *frames) readLimit() int64 { return f.maxSpare * 3 / 8 }

// readBatch is the number of them that a channel takes at a time, so that most reads do not touch
// the shared counter. Channels together keep at most half of the limit unused.
func (d *device) readBatch() int64 {
	return min(64, d.frames.readLimit()/int64(4*d.blocked.Len()))
}

// takeReadable takes n of the frames that may be read. It returns false if there are fewer.
func (c *channel) takeReadable(n int64) bool {
	if c.readable < n && !c.refillReadable(max(n, c.d.readBatch())) &&
		!c.refillReadable(n-c.readable) {
		return false
	}
	c.readable -= n
	return true
}

func (c *channel) refillReadable(n int64) bool {
	if c.d.readable.Add(-n) < 0 {
		c.d.readable.Add(n)
		return false
	}
	c.readable += n
	return true
}

// putReadable gives n of them back.
func (c *channel) putReadable(n int64) {
	c.readable += n
	if batch := c.d.readBatch(); c.readable > 2*batch {
		c.d.readable.Add(c.readable - batch)
		c.readable = batch
	}
}
