package isolation

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestLatencies(t *testing.T) {
	for d := time.Duration(1); d < time.Hour; d += d/7 + 1 {
		if up := upper(bucket(d)); up < d || up > d+max(d, 1<<bucketBits<<bucketBits)>>bucketBits {
			t.Fatalf("%v is in a bucket up to %v", d, up)
		}
	}
	var l latencies
	for i := range 1000 {
		l.note(time.Duration(i+1) * time.Microsecond)
	}
	got, most := l.p99(), l.worst()
	testutil.True(t, got >= 991*time.Microsecond && got <= 1024*time.Microsecond &&
		most >= time.Millisecond, "p99 %v, longest %v", got, most)
}
