package ram

import "math/bits"

// stash is the frames that a channel has for the next writes, in runs of neighbours, the latest
// last: what writes replace is what the next ones get, mostly in one piece.
type stash struct {
	f     *frames
	runs  []run
	total int64
	most  int64 // frames
	at    int64 // the group where to look for more
}

// run is frames in a row.
type run struct{ first, n int64 }

const (
	stashRuns = 64
	// stashLook is how many runs are looked at for one that is long enough.
	stashLook = 8
)

func newStash(f *frames) stash {
	return stash{
		f: f, runs: make([]run, 0, stashRuns), most: max(f.most/16, 2*f.per),
		at: f.count/f.per - f.most/f.per,
	}
}

// put adds frames that the channel has.
func (s *stash) put(first, n int64) {
	s.total += n
	if k := len(s.runs); k > 0 {
		switch top := &s.runs[k-1]; first {
		case top.first + top.n:
			top.n += n
			return
		case top.first - n:
			top.first, top.n = first, top.n+n
			return
		}
	}
	if len(s.runs) == cap(s.runs) {
		s.shed(stashRuns / 2)
	}
	s.runs = append(s.runs, run{first, n})
}

// trim keeps the stash within its bounds, at the cost of the oldest runs.
func (s *stash) trim() {
	if s.total <= s.most {
		return
	}
	n, left := 0, s.total
	for left > s.most/2 && n < len(s.runs) {
		left -= s.runs[n].n
		n++
	}
	s.shed(n)
}

// shed frees the n oldest runs.
func (s *stash) shed(n int) {
	for _, r := range s.runs[:n] {
		s.f.each(r.first, r.n, s.f.free)
		s.f.spare.Add(r.n)
		s.total -= r.n
		s.at = r.first / s.f.per
	}
	s.runs = s.runs[:copy(s.runs, s.runs[n:])]
}

// take takes up to n frames in a row, as many as there are; a longer run is rather split than
// shorter ones used up.
func (s *stash) take(n int64) (first, got int64) {
	want := min(n, s.f.per)
	if !s.find(want) && s.refill() {
		s.find(want)
	}
	if len(s.runs) == 0 {
		return 0, 0
	}
	top := &s.runs[len(s.runs)-1]
	n = min(n, top.n)
	first = top.first
	top.first, top.n = top.first+n, top.n-n
	s.total -= n
	if top.n == 0 {
		s.runs = s.runs[:len(s.runs)-1]
	}
	return first, n
}

// find puts a run of at least n frames last.
func (s *stash) find(n int64) bool {
	k := len(s.runs) - 1
	for i := k; i >= max(0, k-stashLook); i-- {
		if s.runs[i].n >= n {
			s.runs[i], s.runs[k] = s.runs[k], s.runs[i]
			return true
		}
	}
	return false
}

// refill takes the free frames of a group, if that leaves half of the spare ones to those who need
// one.
func (s *stash) refill() bool {
	f := s.f
	if f.spare.Add(-f.per) < f.most/2 || s.total > s.most {
		f.spare.Add(f.per)
		return false
	}
	g, taken, ok := f.grab(s.at, scanMost)
	s.at = g
	f.spare.Add(f.per - int64(bits.OnesCount64(taken)))
	for base := g * f.per; taken != 0; {
		skip := int64(bits.TrailingZeros64(taken))
		n := int64(bits.TrailingZeros64(^(taken >> skip)))
		s.put(base+skip, n)
		base, taken = base+skip+n, taken>>skip>>n
	}
	return ok
}
