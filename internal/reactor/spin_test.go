package reactor

import (
	"testing"
	"time"
)

// TestSpinLearns: work that comes rarely makes the loop stop spinning.
func TestSpinLearns(t *testing.T) {
	const longest = int64(50 * time.Microsecond)
	var s spin
	s.init(longest, 100)
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
	for i := 0; i < 100; i++ { // the clock stands still: nothing is known about the time
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
	s.busy()
	if s.done(now) {
		t.Fatal("work did not start the spin again")
	}
}

// TestSpinShare: however well spinning pays, it takes no more than its share of the time.
func TestSpinShare(t *testing.T) {
	const longest, second = int64(50 * time.Microsecond), int64(time.Second)
	for _, share := range []int64{1, 20, 100} {
		var s spin
		s.init(longest, share)
		spun, now := int64(0), second
		for now < 11*second {
			s.busy()
			for from := now; ; now += 1000 {
				if s.done(now) {
					spun += now - from
					break
				}
			}
			now += longest / 2
			s.slept(longest / 2)
		}
		want := min(share, 65) * second / 10 // 66 %: it cannot spin more than until it may sleep
		if most := share*second/10*11/10 + longest*2; spun < want*9/10 || spun > most {
			t.Errorf("%d %%: spun for %d ms of 10 s", share, spun/1e6)
		}
	}
}
