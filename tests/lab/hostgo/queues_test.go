package hostgo

import (
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestManyQueues keeps more I/O queues busy than a Linux host opens on few processors, each with
// its own regions.
func TestManyQueues(t *testing.T) {
	const queues, depth = 16, 128
	each := regions / queues
	tr, o := testTarget(t)
	c := connect(t, tr, o, queues)
	memory := testutil.Value(c.Map(regions * regionLen))(t)
	lanes := newLanes(memory)
	var wg sync.WaitGroup
	var errs [queues]error
	for i := range queues {
		q := open(t, c, uint16(i+1), depth)
		wg.Go(func() { errs[i] = churn(q, lanes[i*each:(i+1)*each], 1500) })
	}
	wg.Wait()
	for i, err := range errs {
		testutil.Equal(t, err, nil, "queue %d", i+1)
	}
}
