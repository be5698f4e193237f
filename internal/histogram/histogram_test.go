package histogram

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestBucketsAreFine(t *testing.T) {
	for _, ns := range []int64{
		0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 1000, 4095, 4096, 1 << 20, 1<<35 + 12345, 1<<36 - 1,
	} {
		b := bucketOf(ns)
		low, next := lowest(b), lowest(b+1)
		testutil.True(t, low <= ns && next > ns && next-low <= max(ns/(1<<subBits), 1),
			"%d falls into the bucket from %d to %d", ns, low, next)
	}
	for _, ns := range []int64{1 << 36, math.MaxInt64} {
		testutil.Equal(t, bucketOf(ns), buckets-1, "%d is not in the last bucket", ns)
	}
	testutil.Equal(t, bucketOf(-1), 0, "a negative duration has no bucket")
}

// TestQuantiles: they are within 5 % of the exact ones for several distributions, also merged from
// parts.
func TestQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for name, draw := range map[string]func() int64{
		"even": func() int64 { return rng.Int64N(1_000_000) + 1000 },
		"long tail": func() int64 {
			return int64(10_000 * math.Exp(3*math.Abs(rng.NormFloat64())))
		},
		"two modes": func() int64 {
			return 12_000 + rng.Int64N(2000) + rng.Int64N(50)/49*7_000_000
		},
	} {
		var h, part Histogram
		values := make([]int64, 200_000)
		for i := range values {
			values[i] = draw()
			if i%3 == 0 {
				part.Add(values[i])
			} else {
				h.Add(values[i])
			}
		}
		h.Merge(&part)
		slices.Sort(values)
		for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999, 0.9999} {
			want, got := float64(values[int(q*float64(len(values)))]), float64(h.Quantile(q))
			testutil.True(t, math.Abs(got-want) <= 0.05*want,
				"%s: quantile %v is %v, want about %v", name, q, got, want)
		}
		sum, total := int64(0), uint64(0)
		for _, v := range values {
			sum += v
		}
		for _, n := range h.All() {
			total += n
		}
		if n := uint64(len(values)); h.Count() != n || total != n || h.Sum() != sum ||
			h.Max() != values[n-1] || h.Quantile(1) != h.Max() {
			t.Errorf("%s: count %d, sum %d, max %d", name, h.Count(), h.Sum(), h.Max())
		}
	}
}

func TestZeros(t *testing.T) {
	var h Histogram
	h.AddZeros(99)
	h.Add(1000)
	if h.Quantile(0.5) != 0 || h.Quantile(0.995) < 950 || h.Count() != 100 || h.Sum() != 1000 {
		t.Errorf("median %d, p99.5 %d, count %d", h.Quantile(0.5), h.Quantile(0.995), h.Count())
	}
}

// TestPowersOfTwo: they are bounds of buckets; the classic buckets of metrics rely on that.
func TestPowersOfTwo(t *testing.T) {
	for bit := range 36 {
		p := int64(1) << bit
		testutil.True(t, lowest(bucketOf(p)) == p, "2^%d is within a bucket", bit)
	}
}
