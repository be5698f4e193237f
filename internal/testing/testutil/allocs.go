package testutil

import "testing"

const samples = 20

// AllocsPerRun returns the minimum of testing.AllocsPerRun over several samples of runs calls.
// testing.AllocsPerRun counts for the whole process: timers, the runtime and goroutines of earlier
// tests can only add to a sample, while the allocations of fn itself are in each. It stops at the
// first sample without allocations.
func AllocsPerRun(runs int, fn func()) float64 {
	least := testing.AllocsPerRun(runs, fn)
	for i := 1; i < samples && least > 0; i++ {
		least = min(least, testing.AllocsPerRun(runs, fn))
	}
	return least
}
