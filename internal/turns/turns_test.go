package turns

import (
	"bytes"
	"net/netip"
	"testing"
)

// TestPool: addresses take turns, known ones and then the newest first.
func TestPool(t *testing.T) {
	var p Pool
	p.workers = MaxWorkers() // the test takes the jobs
	var order []byte
	add := func(who byte, known bool) {
		a := netip.AddrFrom4([4]byte{192, 0, 2, who})
		p.Submit(&Job{
			From: a, Known: known, Run: func() { order = append(order, who) }, Done: func() {},
		})
	}
	for range 3 {
		add(1, false)
	}
	add(2, false)
	add(2, false)
	add(3, true)
	for _, from := range []byte{2, 4} {
		canceled := &Job{From: netip.AddrFrom4([4]byte{192, 0, 2, from})}
		p.Submit(canceled)
		if !p.Cancel(canceled) || p.Cancel(canceled) {
			t.Error("a job is not canceled once")
		}
	}
	p.work()
	if want := []byte{3, 2, 1, 2, 1, 1}; !bytes.Equal(order, want) {
		t.Errorf("%v instead of %v", order, want)
	}
	if len(p.waiting) > 0 {
		t.Error("addresses are left")
	}
	order = nil
	p.workers, p.taken = MaxWorkers(), 0
	for range 3 * othersTurn {
		add(3, true)
	}
	add(1, false)
	p.work()
	if n := bytes.IndexByte(order, 1); n != othersTurn || len(order) != 3*othersTurn+1 {
		t.Errorf("a host that does not stop keeps others out: %v", order)
	}
}
