package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestManyTimeouts: a step looks for timeouts in a bounded number of commands, and all of them are
// found in the end.
func TestManyTimeouts(t *testing.T) {
	const queues, each = 24, 100
	r, dev := hangingHarness(t, 1)
	var list []*fabrictest.Command
	dev.Hold(nil)
	for range queues {
		q := r.connectHost(1).io[0]
		for range each {
			list = append(list, r.send(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))))
		}
	}
	r.until("the device has all", func() bool { return dev.Held() == len(list) })
	h := r.raw[0]
	h.stopTimeouts()
	h.stopTimeouts = func() {} // no timer looks for them
	r.w.Advance(3 * time.Second)
	done := func() (n int) {
		for _, c := range list {
			if c.Done {
				n++
			}
		}
		return n
	}
	h.checkTimeouts()
	h.run()
	if n := done(); n == 0 || n > stepMost {
		t.Fatalf("one step gives up %d of %d commands", n, len(list))
	}
	r.until("all are given up", func() bool {
		r.w.Advance(time.Millisecond)
		return done() == len(list)
	})
	dev.Release()
	r.w.Settle()
}
