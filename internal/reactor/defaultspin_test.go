package reactor

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestDefaultSpin: the default follows the time to wake a thread, within bounds.
func TestDefaultSpin(t *testing.T) {
	for w, want := range map[time.Duration]time.Duration{
		0: leastSpin, 10 * time.Microsecond: leastSpin,
		50 * time.Microsecond: 400 * time.Microsecond, 150 * time.Microsecond: mostSpin,
	} {
		testutil.Equal(t, spinFor(w), want, "%v: spins for", w)
	}
	testutil.True(t, wakeTime() != 0, "no wake-up of a thread was measured")
}
