package reactor

import (
	"testing"
	"time"
)

// TestSpinLearns: rare work makes the loop stop spinning.
func TestSpinLearns(t *testing.T) {
	const longest = int64(50 * time.Microsecond)
	var s spin
	s.init(longest)
	for range 10 {
		s.slept(longest * 20)
	}
	if s.cur != 0 || !s.done(0) {
		t.Errorf("after long sleeps the loop still spins for %d ns", s.cur)
	}
	for range 10 {
		s.slept(longest / 2)
	}
	if s.cur != longest {
		t.Errorf("after short sleeps the loop spins for %d ns", s.cur)
	}
	now := int64(1000)
	for i := 0; i < 100; i++ { // the clock stands still, so no time is known
		if s.done(now) {
			t.Fatal("slept without knowing the time")
		}
	}
	if now += 10 * longest; s.done(now) {
		t.Fatal("the first reading is where the spin begins")
	}
	if now += longest - 1; s.done(now) {
		t.Fatal("too early")
	}
	if now++; !s.done(now) {
		t.Fatal("too late")
	}
	s.busy(0)
	if s.done(now) {
		t.Fatal("work did not start the spin again")
	}
}
