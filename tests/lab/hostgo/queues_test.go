package hostgo

import (
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// More I/O queues than a Linux host makes on so few processors, all of them busy at once, each with regions of its own: NVMF_TEST_QUEUES of
// them, or 16.
func TestManyQueues(t *testing.T) {
	const most, depth = 16, 128
	queues := most
	if text := os.Getenv("NVMF_TEST_QUEUES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			t.Fatalf("NVMF_TEST_QUEUES=%s: must be 1 to %d", text, most)
		}
		queues = n
	}
	each := regions / queues
	tr, o := where(t)
	c := connect(t, tr, o, queues)
	memory, err := c.Map(regions * regionLen)
	if err != nil {
		t.Fatal(err)
	}
	lanes := make([]lane, regions)
	for i := range lanes {
		lanes[i].slba, lanes[i].data = uint64(i)*regionLen/block, memory[i*regionLen:(i+1)*regionLen]
	}
	var wg sync.WaitGroup
	var counts [most]int
	var errs [most]error
	for i := range queues {
		q := open(t, c, uint16(i+1), depth)
		wg.Go(func() { counts[i], errs[i] = churn(q, lanes[i*each:(i+1)*each], 3*time.Second) })
	}
	wg.Wait()
	total := 0
	for i, n := range counts[:queues] {
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
