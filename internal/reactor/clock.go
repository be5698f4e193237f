package reactor

import "time"

// clock is the monotonic clock. It is read once in a few hundred steps, because under user-mode
// Linux a reading is a system call, and paces all that a busy loop does only occasionally.
type clock struct {
	now   int64 // the last reading
	ticks int   // steps of work since then
	every int   // ticks between readings; follows the length of a step
}

const (
	maxEvery    = 256 // a step is about a microsecond
	clockFine   = int64(250 * time.Microsecond)
	clockCoarse = int64(time.Millisecond)
)

// epoch is before any reading, so that readings are positive.
var epoch = time.Now().Add(-time.Second)

func (c *clock) init() {
	c.every = maxEvery
	c.read()
}

func (c *clock) read() int64 {
	c.now = sinceEpoch()
	c.ticks = 0
	return c.now
}

func sinceEpoch() int64 { return int64(time.Since(epoch)) }

// tick counts steps of work and reports whether the clock should be read.
func (c *clock) tick(n int) bool {
	c.ticks += n
	return c.ticks >= c.every
}

// adapt reads the clock and schedules the next reading less than a millisecond from now.
func (c *clock) adapt() {
	before := c.now
	c.every = pace(c.every, c.read()-before)
}

// pace returns the number of steps until the next reading, if each step took d nanoseconds.
func pace(every int, d int64) int {
	switch {
	case d > clockCoarse:
		return max(every/2, 1)
	case d < clockFine:
		return min(every*2, maxEvery)
	}
	return every
}

// Now returns the monotonic clock in nanoseconds of the process, at most about a ms old.
func (r *Reactor) Now() int64 { return r.clock.now }

// Clock reads the same clock. Any goroutine may call it.
func (r *Reactor) Clock() int64 { return sinceEpoch() }
