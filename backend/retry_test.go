package backend

import (
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestRetry(t *testing.T) {
	var g RetryGroup
	g.Wake()
	woken := [3]int{}
	var members [3]*Retry
	for i := range members {
		members[i] = g.Join(func() { woken[i]++ })
	}
	members[0].Wait(true)
	members[0].Wait(true)
	members[2].Wait(true)
	members[2].Leave()
	if g.Len() != 2 || !g.Waiting() {
		t.Errorf("%d channels, waiting %v", g.Len(), g.Waiting())
	}
	g.Wake()
	testutil.True(t, woken == [3]int{1, 0, 0} && members[0].Due() && !members[1].Due() &&
		!members[2].Due(), "woken: %v", woken)
	testutil.True(t, members[0].Take() && !members[0].Take(), "a retry is not taken once")
	testutil.True(t, members[1].Wait(true) && !members[1].Wait(true) && members[1].Wait(false),
		"Wait does not report what is new")
	members[0].Wait(false)
	g.Wake()
	testutil.True(t, !g.Waiting() && woken[0] == 1, "woken without waiting: %v", woken)
	members[0].Leave()
	members[1].Leave()
	if g.Len() != 0 || g.Waiting() {
		t.Errorf("%d channels are left, waiting %v", g.Len(), g.Waiting())
	}
}

// TestRetryMissesNothing: a channel that calls Wait and then tries once more never misses a
// resource, whether it is given back before or after.
func TestRetryMissesNothing(t *testing.T) {
	const rounds = 2000
	var g RetryGroup
	wake := make(chan struct{}, 1)
	r := g.Join(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	tokens := make(chan struct{}, rounds)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds {
			tokens <- struct{}{}
			g.Wake()
		}
	})
	try := func() bool {
		select {
		case <-tokens:
			return true
		default:
			return false
		}
	}
	for range rounds {
		if try() {
			continue
		}
		for r.Wait(true); !try(); {
			<-wake
			r.Take()
		}
		r.Wait(false)
	}
	wg.Wait()
	r.Leave()
}
