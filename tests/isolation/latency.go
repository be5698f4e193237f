package isolation

import (
	"math/bits"
	"time"
)

// latencies counts latencies in buckets that are at most a 32nd of their values wide, so that a run
// of any length needs the same memory. nil is empty.
type latencies []uint32

// bucketBits is the number of bits below the highest one that distinguish buckets.
const bucketBits = 5

func (l *latencies) note(d time.Duration) {
	if *l == nil {
		*l = make(latencies, 64<<bucketBits)
	}
	(*l)[bucket(d)]++
}

func bucket(d time.Duration) int {
	v := uint64(max(d, 1<<bucketBits))
	exponent := bits.Len64(v) - 1 - bucketBits
	return exponent<<bucketBits + int(v>>exponent)
}

// upper returns the longest latency of a bucket.
func upper(i int) time.Duration {
	exponent := i>>bucketBits - 1
	return time.Duration((i&(1<<bucketBits-1)|1<<bucketBits)+1)<<exponent - 1
}

func (l *latencies) add(of latencies) {
	if *l == nil && of != nil {
		*l = make(latencies, len(of))
	}
	for i, n := range of {
		(*l)[i] += n
	}
}

func (l latencies) count() (n int) {
	for _, c := range l {
		n += int(c)
	}
	return n
}

// p99 returns the 99th percentile.
func (l latencies) p99() time.Duration { return l.percentile(99) }

// percentile returns the longest of the shortest p percent of latencies.
func (l latencies) percentile(p int) time.Duration {
	for i, left := 0, l.count()*p/100; i < len(l); i++ {
		if left -= int(l[i]); left < 0 {
			return upper(i).Round(time.Microsecond)
		}
	}
	return 0
}

// worst returns the longest latency.
func (l latencies) worst() (d time.Duration) {
	for i, n := range l {
		if n > 0 {
			d = upper(i).Round(time.Microsecond)
		}
	}
	return d
}
