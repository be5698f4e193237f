package hostgo

import (
	"sync"
	"testing"
	"time"
)

// More I/O queues than a Linux host makes on so few processors, all of them busy at once, each with
// regions of its own.
func TestManyQueues(t *testing.T) {
	const queues, depth = 16, 128
	each := regions / queues
	tr, o := where(t)
	c := connect(t, tr, o, queues)
	memory, err := c.Map(regions * regionLen)
	if err != nil {
		t.Fatal(err)
	}
	lanes := make([]lane, regions)
	for i := range lanes {
		lanes[i].slba, lanes[i].data = uint64(i)*regionLen/block,
			memory[i*regionLen:(i+1)*regionLen]
	}
	var wg sync.WaitGroup
	var counts [queues]int
	var errs [queues]error
	for i := range queues {
		q := open(t, c, uint16(i+1), depth)
		wg.Go(func() { counts[i], errs[i] = churn(q, lanes[i*each:(i+1)*each], 3*time.Second) })
	}
	wg.Wait()
	total := 0
	for i, n := range counts {
		if errs[i] != nil {
			t.Errorf("queue %d: %v", i+1, errs[i])
		}
		if n < each {
			t.Errorf("queue %d served %d commands", i+1, n)
		}
		total += n
	}
	t.Logf("%d commands on %d queues", total, queues)
}
