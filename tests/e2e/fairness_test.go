package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestFairness: 31 queues with one 4 KiB read in flight each run beside a queue with 128 reads, on
// TCP of 128 KiB. Their p99 is at most twice the p99 without it. If the target served a TCP queue
// for as long as it has work, the factor would be 20. The initiators share the process, and other
// processes the machine, so it suffices that one of twenty rounds meets the bound. tests/bench
// measures it on a quiet machine, and packages tcp and rdma test single turns.
func TestFairness(t *testing.T) {
	testutil.Soak(t, "it measures latencies")
	if raceEnabled {
		t.Skip("needs a build without the race detector, which slows down copying most")
	}
	shared := func(c *rdma.Config) { c.SRQSize = 128 } // fewer receives than commands
	for _, v := range []variant{
		{name: "tcp"},
		{name: "rdma", isRDMA: true},
		{name: "rdma SRQ", isRDMA: true, options: options{rdma: shared}},
		{name: "rdma reactors", isRDMA: true, options: options{reactors: 2}},
		{name: "iwarp", isRDMA: true, options: options{iwarp: true}},
	} {
		t.Run(v.name, func(t *testing.T) { testFairness(t, v) })
	}
}

func testFairness(t *testing.T, v variant) {
	h := newEnv(t, v.options)
	c := h.connect(v)
	const lightSize, depth = 4 << 10, 128
	deepSize := 128 << 10
	if v.isRDMA {
		deepSize = lightSize // the fake moves data on the reactor, unlike a device
	}
	var light []*pump
	for qid := uint16(1); qid <= 31; qid++ {
		light = append(light, newPump(h.Open(c, qid, 2), h.Buffer(c, lightSize), 1))
	}
	deep := newPump(h.Open(c, 32, depth), h.Buffer(c, deepSize*(depth-1)), depth-1)
	everyone := append(slices.Clone(light), deep)
	for round := 1; ; round++ {
		alone, beside := p99(t, light, light), p99(t, everyone, light)
		least, most := len(light[0].latencies), 0
		for _, p := range light {
			least, most = min(least, len(p.latencies)), max(most, len(p.latencies))
		}
		t.Logf("p99 of the light queues: %v alone, %v beside the deep queue; %d to %d reads of "+
			"each, %d of the deep queue", alone, beside, least, most, len(deep.latencies))
		if beside <= 2*alone {
			return
		}
		testutil.MustTrue(t, round != 20, "a deep queue delays others: p99 %v instead of %v",
			beside, alone)
	}
}

// pump keeps reads in flight on a queue.
type pump struct {
	q         *host.Queue
	nsid      uint32
	data      [][]byte // per slot
	began     []time.Time
	idle      []int // slots
	done      []host.Completion
	latencies []time.Duration
}

func newPump(q *host.Queue, memory []byte, depth int) *pump {
	p := &pump{q: q, nsid: 2, began: make([]time.Time, depth), done: make([]host.Completion, depth)}
	size := len(memory) / depth
	for i := range depth {
		p.data = append(p.data, memory[i*size:(i+1)*size])
		p.idle = append(p.idle, i)
	}
	return p
}

// step submits reads in all idle slots if more is set, and processes completions.
func (p *pump) step(t *testing.T, more bool) {
	const blockSize, blocks = 4096, 64 << 20 / 4096
	for more && len(p.idle) > 0 {
		slot := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		n := uint64(len(p.data[slot]) / blockSize)
		var op host.Op
		op.Read(p.nsid, uint64(len(p.latencies))*n%(blocks-n), uint32(n), p.data[slot])
		op.Token = uint64(slot)
		p.began[slot] = time.Now()
		testutil.Value(p.q.Submit(&op))(t)
	}
	n := testutil.Value(p.q.Poll(p.done))(t)
	for i := range p.done[:n] {
		testutil.MustTrue(t, p.done[i].Status().OK(), "%v", p.done[i].Status())
		slot := int(p.done[i].Token)
		p.latencies = append(p.latencies, time.Since(p.began[slot]))
		p.idle = append(p.idle, slot)
	}
}

// p99 runs the pumps in run for a while, all on this goroutine, and returns the 99th percentile of
// the latencies of the pumps in of.
func p99(t *testing.T, run, of []*pump) time.Duration {
	for _, p := range run {
		p.latencies = p.latencies[:0]
	}
	deadline := time.Now().Add(300 * time.Millisecond)
	for busy := true; busy; {
		more := time.Now().Before(deadline)
		busy = more
		for _, p := range run {
			p.step(t, more)
			busy = busy || p.q.Outstanding() > 0
		}
	}
	var all []time.Duration
	for _, p := range of {
		all = append(all, p.latencies...)
	}
	testutil.MustTrue(t, len(all) != 0, "no read has completed")
	slices.Sort(all)
	return all[len(all)*99/100]
}
