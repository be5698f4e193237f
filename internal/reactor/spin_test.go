package reactor

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestSpinLearns: rare work makes the loop stop spinning.
func TestSpinLearns(t *testing.T) {
	const longest = int64(50 * time.Microsecond)
	var s spin
	s.init(longest)
	for range 10 {
		s.slept(longest * 20)
	}
	testutil.True(t, s.cur == 0 && s.done(0), "after long sleeps the loop still spins for %d ns",
		s.cur)
	for range 10 {
		s.slept(longest / 2)
	}
	testutil.True(t, s.cur == longest, "after short sleeps the loop spins for %d ns", s.cur)
	now := int64(1000)
	for i := 0; i < 100; i++ { // the clock stands still, so no time is known
		testutil.MustTrue(t, !s.done(now), "slept without knowing the time")
	}
	if now += 10 * longest; s.done(now) {
		t.Fatal("the first reading is where the spin begins")
	}
	if now += longest - 1; s.done(now) {
		t.Fatal("too early")
	}
	now++
	testutil.MustTrue(t, s.done(now), "too late")
	s.busy(0)
	testutil.MustTrue(t, !s.done(now), "work did not start the spin again")
}
