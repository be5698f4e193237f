package reactor

// spin decides how long a loop without work continues to poll. It follows the halt polling of KVM:
// after a sleep shorter than the longest spin, spinning would have paid, so spin longer; after a
// longer sleep, the spin was wasted, so spin less. At low rates the loop soon does not spin at all.
type spin struct {
	max, cur int64 // nanoseconds
	// empty counts iterations since the last work. last is the reading of the clock at the first of
	// them, and since the first different reading, or 0.
	empty       int
	last, since int64
	polling     int64 // total time polled without finding work
	short       bool  // the last sleep was shorter than shortSleep
}

const (
	spinFirst = 8  // the first step up from 0 is max/spinFirst
	spinLeast = 16 // below max/spinLeast a shrunken spin becomes 0
	spinYield = 32 // iterations between two yields where processors are short
)

func (s *spin) init(longest int64) { s.max, s.cur, s.short = longest, longest, true }

// busy records work, or the beginning of a sleep. now is the last reading of the clock.
func (s *spin) busy(now int64) {
	if s.empty > 1 && s.since != 0 {
		s.polling += now - s.since
	}
	s.empty = 0
}

// done reports, after an iteration without work, whether it is time to sleep. now is the last
// reading of the clock, which the loop renews every few iterations.
func (s *spin) done(now int64) bool {
	if s.cur == 0 {
		return true
	}
	if s.empty++; s.empty == 1 {
		s.last, s.since = now, 0
		return false
	}
	if s.since == 0 {
		if now != s.last { // older readings do not tell when the work ended
			s.since = now
		}
		return false
	}
	return now-s.since >= s.cur
}

// slept learns from a sleep of d nanoseconds.
func (s *spin) slept(d int64) {
	s.short = d < int64(shortSleep)
	switch {
	case s.max == 0:
	case d >= s.max:
		if s.cur /= 2; s.cur < s.max/spinLeast {
			s.cur = 0
		}
	case s.cur == 0:
		s.cur = s.max / spinFirst
	default:
		s.cur = min(2*s.cur, s.max)
	}
}
