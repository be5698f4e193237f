package ram

// The frames that zero-copy reads hold may all be replaced while they are being read, and each then
// takes a spare frame. Reads are refused, and copied, before that could use up the spare frames:
// otherwise hosts that do not take what they read would stop the writes of others.

// readLimit is how many frames zero-copy reads may hold: half of the spare frames is for frame
// caches and zero-copy writes, an eighth is left for writes whose frame is being read.
func (f *frames) readLimit() int64 { return f.maxSpare * 3 / 8 }

// readBatch is how many of them a channel takes at a time, so that most reads do not touch what all
// reactors share. Channels keep no more than half of them in vain.
func (d *device) readBatch() int64 {
	return min(64, d.frames.readLimit()/int64(4*d.blocked.Len()))
}

// takeReadable takes n of the frames that may be read. It returns false if there are not so many.
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
