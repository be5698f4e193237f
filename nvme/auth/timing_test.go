package auth

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"
)

// TestComparisons: nothing of this package is compared in a time that depends on where it differs.
func TestComparisons(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`bytes\.(Equal|Compare|HasPrefix)|slices\.(Equal|Compare)|` +
		`reflect\.|[!=]= *string\(|Reveal\(\) *[!=]=|[!=]= *\w+\.Reveal`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if ok, _ := filepath.Match("*_test.go", file); ok {
			continue
		}
		for _, found := range variable.FindAll(text, -1) {
			t.Errorf("%s: %s instead of hmac.Equal or subtle.ConstantTimeCompare", file, found)
		}
	}
}

// leak is how far a test has to be from no difference: |t| of Welch's test, as in dudect.
const leak = 10

// difference measures fn, whose argument says which of two classes of input it has, and compares
// the times of both by Welch's t-test. The longest twentieth is what interrupted the test.
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

// TestTiming: how long it takes to compare keys and responses does not tell where they differ.
func TestTiming(t *testing.T) {
	if !full {
		t.Skip("a measurement, which needs a quiet machine: NVMF_TEST_FULL=1 runs it")
	}
	const samples = 100_000
	key, err := NewKey(64, NoHash)
	if err != nil {
		t.Fatal(err)
	}
	keys := [2]*Key{} // which differ in the first byte and in the last one
	for i, at := range []int{0, 63} {
		keys[i] = &Key{slices.Clone(key.secret), NoHash}
		keys[i].secret[at] ^= 1
	}
	repeated := func(fn func(*Key)) func(int) func() {
		return func(class int) func() {
			return func() {
				for range 100 {
					fn(keys[class])
				}
			}
		}
	}
	equal := 0
	tested := difference(samples, repeated(func(k *Key) {
		if key.Equal(k) {
			equal++
		}
	}))
	naive := difference(samples, repeated(func(k *Key) {
		for i := range k.secret {
			if k.secret[i] != key.secret[i] {
				return
			}
		}
		equal++
	}))
	p := &Policy{Keys: []*Key{key}, Groups: []Group{GroupNull}}
	response := difference(samples, func(class int) func() {
		c := NewController("nqn.host", "nqn.sub", NoConcatenation)
		h := &Host{HostNQN: "nqn.host", SubNQN: "nqn.sub", Key: key, Hashes: []Hash{SHA512}}
		c.Sent(h.Negotiate(1), p)
		m, err := h.Challenged(bytes.Clone(c.Message()))
		if err != nil {
			t.Fatal(err)
		}
		c.Read()
		m[headerSize+[]int{0, 63}[class]] ^= 1
		return func() { c.Sent(m, p) }
	})
	t.Logf("t of keys %.1f, of responses %.1f; of a comparison that leaks %.1f", tested, response,
		naive)
	if equal > 0 || math.Abs(tested) > leak || math.Abs(response) > leak {
		t.Error("the time tells where secrets differ")
	}
	if math.Abs(naive) <= leak {
		t.Error("the test would not find a leak")
	}
}
