package testutil

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// leak is the threshold of a difference: |t| of Welch's test, as in dudect.
const leak = 10

// SameTime fails the test if the time of run, which prepare returns for one of two classes, reveals
// the class within this many samples. The test is left to "make soak".
func SameTime(t *testing.T, samples int, prepare func(class int) (run func())) {
	t.Helper()
	Soak(t, "it measures time")
	d := difference(samples, prepare)
	t.Logf("t of Welch's test: %.1f", d)
	if math.Abs(d) > leak {
		t.Errorf("the time tells: |%.1f| > %d", d, leak)
	}
}

// DifferentTime fails the test if the time does not reveal the class, in which case SameTime would
// prove nothing.
func DifferentTime(t *testing.T, samples int, prepare func(class int) (run func())) {
	t.Helper()
	Soak(t, "it measures time")
	d := difference(samples, prepare)
	t.Logf("t of Welch's test: %.1f", d)
	if math.Abs(d) <= leak {
		t.Errorf("a leak would not be found: |%.1f| <= %d", d, leak)
	}
}

// difference compares the times of both classes by Welch's t-test. It drops the longest twentieth,
// in which the test was interrupted.
func difference(samples int, prepare func(class int) (run func())) float64 {
	var times [2][]float64
	for range samples {
		class := rand.IntN(2)
		run := prepare(class)
		start := time.Now()
		run()
		times[class] = append(times[class], float64(time.Since(start)))
	}
	all := slices.Sorted(slices.Values(slices.Concat(times[0], times[1])))
	limit := all[len(all)*19/20]
	var mean, variance [2]float64
	for i, list := range times {
		list = slices.DeleteFunc(list, func(x float64) bool { return x > limit })
		for _, x := range list {
			mean[i] += x / float64(len(list))
		}
		for _, x := range list {
			variance[i] += (x - mean[i]) * (x - mean[i]) / float64(len(list)-1)
		}
		variance[i] /= float64(len(list))
	}
	return (mean[0] - mean[1]) / math.Sqrt(variance[0]+variance[1])
}
