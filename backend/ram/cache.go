package ram

import "math/bits"

// frameCache is the frames that a channel has ready for its next writes, in runs of neighbors, the
// latest run last. Writes use the frames that earlier writes replaced, mostly in one piece
// (measured in docs/adr/0012).
type frameCache struct {
	f         *frames
	runs      []run
	total     int64 // frames
	maxFrames int64
	at        int64 // the group where refill starts to search
}

// run is a number of adjacent frames.
type run struct{ first, n int64 }

const (
	maxRuns = 64
	// maxRunsSearched is the number of runs that take searches for one that is long enough.
	maxRunsSearched = 8
)

func newFrameCache(f *frames) frameCache {
	return frameCache{
		f: f, runs: make([]run, 0, maxRuns), maxFrames: max(f.maxSpare/16, 2*f.per),
		at: f.count/f.per - f.maxSpare/f.per,
	}
}

// put adds frames of the channel to the cache.
func (c *frameCache) put(first, n int64) {
	c.total += n
	if k := len(c.runs); k > 0 {
		switch top := &c.runs[k-1]; first {
		case top.first + top.n:
			top.n += n
			return
		case top.first - n:
			top.first, top.n = first, top.n+n
			return
		}
	}
	if len(c.runs) == cap(c.runs) {
		c.evict(maxRuns / 2)
	}
	c.runs = append(c.runs, run{first, n})
}

// trim evicts the oldest runs beyond maxFrames until half of maxFrames is left.
func (c *frameCache) trim() {
	if c.total <= c.maxFrames {
		return
	}
	n, left := 0, c.total
	for left > c.maxFrames/2 && n < len(c.runs) {
		left -= c.runs[n].n
		n++
	}
	c.evict(n)
}

func (c *frameCache) evict(n int) {
	for _, r := range c.runs[:n] {
		c.f.each(r.first, r.n, c.f.free)
		c.f.spare.Add(r.n)
		c.total -= r.n
		c.at = r.first / c.f.per
	}
	c.runs = c.runs[:copy(c.runs, c.runs[n:])]
}

// take takes up to n adjacent frames, of a longer run rather than all of shorter ones.
func (c *frameCache) take(n int64) (first, got int64) {
	want := min(n, c.f.per)
	if !c.find(want) && c.refill() {
		c.find(want)
	}
	if len(c.runs) == 0 {
		return 0, 0
	}
	top := &c.runs[len(c.runs)-1]
	n = min(n, top.n)
	first = top.first
	top.first, top.n = first+n, top.n-n
	c.total -= n
	if top.n == 0 {
		c.runs = c.runs[:len(c.runs)-1]
	}
	return first, n
}

// find moves a run of at least n frames to the end.
func (c *frameCache) find(n int64) bool {
	k := len(c.runs) - 1
	for i := k; i >= max(0, k-maxRunsSearched); i-- {
		if c.runs[i].n >= n {
			c.runs[i], c.runs[k] = c.runs[k], c.runs[i]
			return true
		}
	}
	return false
}

// refill takes a group's free frames, if half of the spare frames remain for other writes.
func (c *frameCache) refill() bool {
	f := c.f
	if f.spare.Add(-f.per) < f.maxSpare/2 || c.total > c.maxFrames {
		f.spare.Add(f.per)
		return false
	}
	g, taken, ok := f.grab(c.at, false)
	c.at = g
	f.spare.Add(f.per - int64(bits.OnesCount64(taken)))
	for base := g * f.per; taken != 0; {
		skip := int64(bits.TrailingZeros64(taken))
		n := int64(bits.TrailingZeros64(^(taken >> skip)))
		c.put(base+skip, n)
		base, taken = base+skip+n, taken>>skip>>n
	}
	return ok
}
