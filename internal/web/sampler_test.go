package web

import (
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestPast: a state is compared with one that is 30 to 60 s older, as soon as there is one.
func TestPast(t *testing.T) {
	var p past
	start := time.Now()
	testutil.True(t, p.before(&doctor.Sample{Time: start}) == nil, "the first state has a past")
	for at := Every; at != 10*compared; at += Every {
		old := p.before(&doctor.Sample{Time: start.Add(at)})
		since := old.Time.UnixNano() - start.UnixNano()
		if d := int64(at) - since; d > int64(compared) || d < min(int64(at), int64(compared)/2) {
			t.Errorf("after %v the past is %v ago", at, time.Duration(d))
		}
	}
}

// TestSlowPorts: ports that do not answer in time are compared at a later look.
func TestSlowPorts(t *testing.T) {
	at := func(n uint64) []observed.PortCounter {
		return []observed.PortCounter{
			{Device: "rxe0", Port: "1", Counter: "rcvd_seq_err", Value: n},
		}
	}
	var p past
	start := time.Now()
	for i, tc := range []struct {
		found, before, now []observed.PortCounter
	}{
		{nil, nil, nil},
		{at(5), at(5), at(5)},
		{nil, at(5), at(5)},
		{at(25), at(5), at(25)},
	} {
		now := &doctor.Sample{Time: start.Add(time.Duration(i) * Every), Ports: tc.found}
		before := p.before(now)
		testutil.True(t, (before == nil || slices.Equal(before.Ports, tc.before)) &&
			slices.Equal(now.Ports, tc.now), "look %d: %+v, %+v", i, before, now)
	}
}
