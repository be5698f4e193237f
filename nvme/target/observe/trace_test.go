package observe

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestRecordSize: the size of a ring is the size that transports count for it.
func TestRecordSize(t *testing.T) {
	n := reflect.TypeFor[[TraceDepth]record]().Size()
	testutil.True(t, n == fabric.HandlerMemory, "%d bytes, %d are counted", n, fabric.HandlerMemory)
}

// TestManyDumps: a peer has its share of them, and makes them no faster than allowed; they end.
func TestManyDumps(t *testing.T) {
	d, now, all := new(Dumps), time.Now(), &observed.TraceQuery{Queue: -1}
	keep := func(remote int) bool {
		ok := d.Allows(testAddr(remote).Addr(), now)
		if ok {
			d.Add(observed.TraceQueue{Remote: testAddr(remote), Time: now})
		}
		return ok
	}
	count := func(remote int) (n int) {
		for _, q := range d.List(all) {
			if q.Remote == testAddr(remote) {
				n++
			}
		}
		return n
	}
	for range maxDumpsOfPeer {
		testutil.True(t, keep(1), "the first ones are not kept")
	}
	testutil.True(t, !keep(1) && keep(2),
		"one address keeps more than its share, or another one keeps none")
	if now = now.Add(dumpEvery); !keep(1) || count(1) != maxDumpsOfPeer {
		t.Errorf("%d of one address", count(1))
	}
	for i := range 100 {
		keep(3 + i)
	}
	testutil.Equal(t, len(d.List(all)), maxDumps, "are kept")
	for i := range 2 * maxDumps { // of reactors that were all allowed to
		d.Add(observed.TraceQueue{Remote: testAddr(i % 6), Time: now})
	}
	if n, of1 := len(d.List(all)), count(1); n > maxDumps || of1 > maxDumpsOfPeer {
		t.Errorf("%d are kept, %d of one address", n, of1)
	}
	d.mu.Lock()
	d.expire(now.Add(dumpsFor))
	left := len(d.list)
	d.mu.Unlock()
	testutil.True(t, left == 0, "%d are left", left)
}

func testAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1)
}
