package verbsconf

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// testAsync makes a completion queue overrun: every watcher of the device gets the event, until it
// stops.
func testAsync(t *testing.T, s *Setup) {
	sp, sa, l := sides(t, s)
	var events [3]chan verbs.AsyncEvent
	for i := range events {
		ch := make(chan verbs.AsyncEvent, 64)
		events[i] = ch
		stop, err := l.Device().Watch(func(ev verbs.AsyncEvent) { ch <- ev })
		sp.must(err, "Watch")
		if i == 0 {
			stop()
		} else {
			t.Cleanup(stop)
		}
	}
	const n = 64
	p := connectTo(t, sp, sa, l, sizes{recv: n, cq: 4}, sizes{send: n})
	for i := range n {
		p.p.postRecv(p.p.recvWR(uint64(i), 0, 8))
	}
	for i := range n {
		p.a.postSend(verbs.SendWR{WRID: uint64(i), Opcode: verbs.WRSend, NumSGE: 1}, p.a.sge(0, 8))
	}
	deadline := time.After(s.Timeout)
	for i, ch := range events[1:] {
		for found := false; !found; {
			select {
			case ev := <-ch:
				found = ev.Type == verbs.AsyncCQErr && ev.CQ == p.p.cq
			case <-deadline:
				t.Fatalf("watcher %d: no CQ_ERR", i+1)
			}
		}
	}
	testutil.True(t, len(events[0]) == 0, "a watcher that had stopped was called")
}
