package reactor

// spin decides how long a loop without work goes on polling. It follows what a virtual machine
// monitor does before it lets a processor halt: a sleep that turned out shorter than the longest
// spin says that spinning would have paid, so spin longer; a long sleep says that it was wasted, so
// spin less. At low rates the loop soon does not spin at all. Beyond that, spinning has a budget: a
// share of the time, saved up for at most two of the longest spins. One begins only if all of it is
// covered.
type spin struct {
	max, cur int64 // nanoseconds
	share    int64 // percent
	// credit is what may be spent now, in nanoseconds. earned and spent are the times up to which
	// both are in it.
	credit, earned, spent int64
	// empty counts iterations since the last work; since is the first reading of the clock among
	// them.
	empty int
	since int64
	last  int64
	brief bool // the last sleep was shorter than a nap
}

const (
	spinFirst = 8  // the first step up from 0 is max/spinFirst
	spinLeast = 16 // below max/spinLeast a shrunken spin becomes 0
	spinYield = 32 // iterations between two yields where processors are short
)

func (s *spin) init(maximum, share int64) {
	s.max, s.cur, s.share, s.credit, s.brief = maximum, maximum, share, 2*maximum, true
}

// busy notes that there was work.
func (s *spin) busy() { s.empty = 0 }

// done reports, after an iteration without work, that it is time to sleep. now is the last reading
// of the clock, which the loop renews every few empty iterations.
func (s *spin) done(now int64) bool {
	s.credit = min(s.credit+(now-s.earned)*s.share/100, 2*s.max)
	s.earned = now
	if s.cur == 0 || s.empty == 0 && s.credit < s.cur {
		return true
	}
	if s.empty++; s.empty == 1 {
		s.last, s.since = now, 0
		return false
	}
	if s.since == 0 {
		if now != s.last {
			// the first reading since the last work: older ones say nothing
			s.since, s.spent = now, now
		}
		return false
	}
	s.credit -= now - s.spent
	s.spent = now
	return now-s.since >= s.cur
}

// slept learns from a sleep of d nanoseconds.
func (s *spin) slept(d int64) {
	s.busy()
	s.brief = d < int64(nap)
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
