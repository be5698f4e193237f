package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestKeepAliveMargin: the smallest part of KATO that was left is shown for a minute or two.
func TestKeepAliveMargin(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1, func(a *connectArgs) { a.kato = 20000 })
	margin := func() time.Duration {
		return time.Duration(r.connections()[0].KeepAliveMarginSeconds * float64(time.Second))
	}
	about := func(what string, want time.Duration) {
		t.Helper()
		got := margin()
		if d := got - want; d < -100*time.Millisecond || d > 100*time.Millisecond {
			t.Errorf("%s: %v is left, want %v", what, got, want)
		}
	}
	alive := func() { r.ok(h.admin, command(nvme.AdminKeepAlive, 0, nil)) }
	about("at once", 20*time.Second)
	for range 5 {
		r.w.Advance(5 * time.Second)
		alive()
	}
	about("a Keep Alive every 5 s", 15*time.Second)
	r.w.Advance(16 * time.Second)
	about("silent for 16 s", 4*time.Second)
	alive()
	for range 8 {
		r.w.Advance(5 * time.Second)
		alive()
	}
	about("40 s later", 4*time.Second)
	for range 30 {
		r.w.Advance(5 * time.Second)
		alive()
	}
	about("three minutes later", 15*time.Second)
	for range 40 { // a check notices other commands: never more than half of KATO is missing
		r.w.Advance(time.Second)
		r.ok(h.io[0], command(nvme.NVMFlush, 1, nil))
	}
	got := margin()
	testutil.True(t, got >= 10*time.Second, "%v is left of a host with I/O every second", got)
}
