package disk

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/backendtest"
)

// TestTurn: a call of Submit or Poll handles a bounded number of ops, however many have come and
// however many are granted at once, and all of them complete.
func TestTurn(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		const most = turnSteps/opSteps + 1
		d := newDisk(t, nUnits*minUnit, false, e)
		c := backendtest.NewClient(t, d, 4096)
		ch := c.Channel.(*channel)
		elsewhere := newActor()
		all := elsewhere.op(backend.OpWrite, 0, nUnits*minUnit)
		if !d.ranges.lock(all) {
			t.Fatal("the range is not free")
		}
		ios := make([]*backend.IO, maxOutstanding)
		for i := range ios {
			ios[i] = &backend.IO{
				Op: backend.OpWriteZeroes, Off: int64(i) * minUnit, Len: minUnit,
			}
		}
		c.Lock()
		if n := ch.Submit(ios); n != len(ios) {
			t.Fatalf("%d of %d were taken", n, len(ios))
		}
		waiting := func() (n int) {
			ch.inbox.Take(&ch.arrived)
			for range ch.arrived.All() {
				n++
			}
			return n
		}
		buf := make([]*backend.IO, 16)
		done := 0
		poll := func(what string) (turns int) {
			for left := waiting(); left > 0; turns++ {
				done += ch.Poll(buf)
				now := waiting()
				if left-now > most {
					t.Fatalf("%s: a poll handles %d ops", what, left-now)
				}
				left = now
			}
			return turns
		}
		if n := poll("begin"); n < len(ios)/most-1 {
			t.Errorf("%d ops began in %d polls", len(ios), n)
		}
		d.ranges.unlock(all)
		if n := waiting(); n != len(ios) {
			t.Fatalf("%d of %d ops are granted", n, len(ios))
		}
		poll("granted")
		for done < len(ios) {
			n := ch.Poll(buf)
			if done += n; n == 0 && ch.Arm() {
				c.Sleep()
			}
		}
		d.ranges.mustBeFree(t)
		c.Close()
		mustClose(t, d)
	})
}
