package authn

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const hour = int64(3600e9)

// TestInterval: a host is due once a command has come after its interval. One command is refused,
// and others after a while, until its time is over.
func TestInterval(t *testing.T) {
	var i Interval
	i.Prove(1)
	in, ok := i.Schedule(1, hour, stagger)
	testutil.MustTrue(t, ok && in == hour && !i.Asks(), "due in %d: %v", in, ok)
	v, in := i.Check(hour, false)
	testutil.MustTrue(t, v == Ask && in == 0 && i.Asks(), "%v, next in %d", v, in)
	refused, started := i.Refuse(false, true)
	testutil.MustTrue(t, !refused && started, "a first command is refused that is not repeated")
	testutil.Equal(t, i.Came(2*hour, 2*hour), step, "until the next check")
	testutil.Equal(t, i.Came(2*hour, 2*hour), 0, "of another command")
	refused, started = i.Refuse(true, true)
	testutil.MustTrue(t, refused && !started && !i.Asks(), "a command that the host repeats passes")
	_, ok = i.Schedule(2*hour, hour, 0)
	testutil.True(t, !ok, "a change of the interval gives a host more time")
	v, in = i.Check(2*hour+step, false)
	testutil.True(t, v == Ask && in == step, "%v, next in %d", v, in)
	refused, _ = i.Refuse(false, true)
	testutil.True(t, refused && i.Asks(), "another command passes after a while")
	refused, _ = i.Refuse(false, true)
	testutil.True(t, !refused, "one more is refused at once")
	v, in = i.Check(2*hour+Limit, true)
	testutil.True(t, v == Wait && in == step, "an exchange is cut off: %v, %d", v, in)
	v, _ = i.Check(2*hour+Limit, false)
	testutil.True(t, v == End, "the host has time for ever")

	i.Prove(3 * hour)
	testutil.Equal(t, i.Came(3*hour, 3*hour-1), 0, "of a command before the proof")
	in, ok = i.Schedule(3*hour, hour, stagger-1)
	testutil.True(t, ok && hour*9/10 < in && in < hour, "due in %d: %v", in, ok)
	in, ok = i.Schedule(3*hour, 0, 0)
	testutil.True(t, ok && in == 0 && !i.Asks(), "no interval")
	i.Stop()
	_, ok = i.Schedule(3*hour, hour, 0)
	testutil.True(t, !ok && i.Came(4*hour, 4*hour) == 0, "a stopped interval goes on")
}

// TestIntervalStaggered: controllers with consecutive identifiers are due one after the other.
func TestIntervalStaggered(t *testing.T) {
	due := map[int64]bool{}
	for id := range uint16(stagger) {
		var i Interval
		i.Prove(0)
		in, _ := i.Schedule(0, hour, id)
		due[in] = true
	}
	testutil.Equal(t, len(due), stagger, "times")
}
