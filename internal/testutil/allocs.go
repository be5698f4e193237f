package testutil

import "testing"

const samples = 20

// AllocsPerRun is the least that testing.AllocsPerRun says in several samples of runs calls. It
// counts for the whole process: timers, the runtime and goroutines that earlier tests have left can
// only add to a sample, and what fn itself allocates is in each. The first sample without
// allocations is the last one.
func AllocsPerRun(runs int, fn func()) float64 {
	least := testing.AllocsPerRun(runs, fn)
	for i := 1; i < samples && least > 0; i++ {
		least = min(least, testing.AllocsPerRun(runs, fn))
	}
	return least
}
