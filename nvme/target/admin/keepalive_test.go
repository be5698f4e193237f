package admin

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const second = int64(1e9)

// TestKeepAlive: the timer expires after a silence, of an enabled controller.
func TestKeepAlive(t *testing.T) {
	var k KeepAlive
	testutil.True(t, !k.Start(0, false, 0, 0) && k.Start(0, true, 0, 0), "without a timeout")
	testutil.Equal(t, RoundKeepAlive(4001), 5000, "timeout in ms")
	testutil.True(t, k.Start(5000, false, 7*second, 10), "with a timeout")
	at := 7*second + k.Next(7*second)
	testutil.Equal(t, at, 7500*second/1000, "first check")
	testutil.True(t, !k.Check(at, 11, true) && !k.Check(at+5*second/2, 11, true), "expires early")
	left, margin := k.Left(at+5*second/2, 11, true)
	testutil.True(t, left.Seconds() == 2.5 && margin.Seconds() == 2.5,
		"%v left, and once %v", left, margin)
	testutil.True(t, !k.Check(at+5*second, 11, false), "expires although it is not enabled")
	testutil.True(t, k.Check(at+10*second, 11, true), "does not expire")
}

// TestKeepAliveAfterStall: when this process stood still, commands may wait unread, so the first
// check after that does not expire.
func TestKeepAliveAfterStall(t *testing.T) {
	var k KeepAlive
	k.Start(5000, false, 0, 10)
	k.Check(second, 10, true)
	testutil.True(t, !k.Check(30*second, 10, true), "expires because this process stood still")
	testutil.True(t, k.Check(35*second, 10, true), "does not expire afterwards")
}
