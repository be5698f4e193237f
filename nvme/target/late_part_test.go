package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// stuckPart is a host with storage that keeps one IO of a command, and carries out the others some
// at a time.
type stuckPart struct {
	*harness
	slow, stuck *backendtest.Faulty
	command     *fabrictest.Command
	other       *fabrictest.Queue // of the host
	begun       int64
}

// stuckParts are commands of 200 parts, of which the second one, block 1, will be stuck.
func stuckParts() map[string]*fabrictest.Command {
	ranges, sources := make([][2]uint64, 200), make([]source, 200)
	for i := range sources {
		ranges[i] = [2]uint64{uint64(i), 1}
		sources[i] = source{slba: uint64(1000 + i), blocks: 1}
	}
	return map[string]*fabrictest.Command{
		"Dataset Management": dsm(1, true, ranges...),
		"Copy":               copyTo(0, nvme.CopyRanges, sources...),
	}
}

func newStuckPart(t *testing.T, c *fabrictest.Command, timeout time.Duration) *stuckPart {
	t.Helper()
	sub, slow := faultySubsystem(t)
	stuck := backendtest.NewFaulty(slow)
	sub.Namespaces[0].Device, sub.Namespaces[0].Timeout = stuck, timeout
	p := &stuckPart{harness: newHarness(t, 3, sub), slow: slow, stuck: stuck, command: c}
	q := p.connectHost(1).io[0]
	p.other = p.connectHost(0).connectIO(2)
	for _, q := range []*fabrictest.Queue{q, p.other} { // opens the channel
		p.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	}
	stuck.Hold(func(io *backend.IO) bool { return io.Op != backend.OpRead && io.Off == 512 })
	slow.Fail(func(*backend.IO) error { slow.Hold(nil); return nil }) // hold the IOs after Release
	p.send(q, c)
	p.w.Settle()
	p.begun = p.now()
	return p
}

func (p *stuckPart) now() int64 { return p.w.Reactors[0].Now() }

// step lets the storage carry out its IOs, except the stuck one, after d.
func (p *stuckPart) step(d time.Duration) {
	p.w.Advance(d)
	p.slow.Release()
	p.w.Settle()
}

// goOn ends the steps.
func (p *stuckPart) goOn() {
	p.slow.Fail(nil)
	p.slow.Release()
	p.w.Settle()
}

// TestLatePart: a part of a command is late although others go on.
func TestLatePart(t *testing.T) {
	for name, c := range stuckParts() {
		p := newStuckPart(t, c, 0)
		for range 5 {
			p.step(time.Duration(slowWrite) * 3 / 5)
		}
		p.goOn()
		retry := p.send(p.other, rw(nvme.NVMWriteZeroes, 1, 0, 2, nil))
		p.ok(p.other, rw(nvme.NVMWriteZeroes, 1, 2, 1, nil))
		testutil.True(t, !retry.Done && !c.Done, "%s: retry %v, command %v", name, retry.Done,
			c.Done)
		p.stuck.Release()
		p.until(name, func() bool { return retry.Done && c.Done })
	}
}

// TestTimeoutOfPart: a command times out for the part that is stuck although others go on.
func TestTimeoutOfPart(t *testing.T) {
	for name, c := range stuckParts() {
		p := newStuckPart(t, c, time.Second)
		limit := time.Second
		if c.SQE.Opcode() == nvme.NVMDatasetManagement {
			limit *= ranges
		}
		for !c.Done && time.Duration(p.now()-p.begun) < 3*limit {
			p.step(limit * 3 / 5)
		}
		testutil.Equal(t, c.CQE.Status()&^nvme.More, notReady, "%s: done %v", name, c.Done)
		p.goOn()
		p.stuck.Release()
		p.w.Settle()
	}
}

// TestLateAllocations: the end of a queue allocates nothing for each of its writes, which are at
// most as many as its entries, and become late in one step.
func TestLateAllocations(t *testing.T) {
	r, dev := hangingHarness(t, 1)
	h := r.connectHost(2)
	r.ok(h.io[0], write(0, 'x'))
	dev.Hold(nil)
	for i := range 100 {
		for _, q := range h.io {
			r.send(q, write(uint64(i), 'x'))
		}
	}
	r.w.Settle()
	c := r.target.find(testSub).lookup(h.cntlid)
	queue := uint16(0)
	allocations := testing.AllocsPerRun(1, func() { // which calls it twice
		queue++
		r.raw[0].holdLate(c.queues[queue], r.raw[0].loop.Now())
	})
	testutil.Equal(t, queue, 2, "queues")
	testutil.True(t, allocations < 50, "%v allocations for 100 writes", allocations)
	testutil.Equal(t, r.raw[0].channels[0].State().Busy.Awaited, 200, "late writes")
	dev.Release()
	r.w.Settle()
}
