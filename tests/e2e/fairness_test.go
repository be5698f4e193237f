package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestFairness: 31 queues with one 4 KiB read in flight each beside a queue with 128 reads of 128
// KiB. p99 of the 31 is at most twice of their own alone; a target that serves a queue for as long
// as it can comes to 20. Initiators share the process and others the machine, so one round of
// twenty has to show it, its halves one after the other; tests/bench measures it on a quiet
// machine, and package tcp looks at single turns.
func TestFairness(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes copying large data slower than everything else")
	}
	w := way{name: "tcp"}
	r := newRig(t, options{})
	c := r.connect(w)
	const politeSize, greedySize, depth = 4 << 10, 128 << 10, 128
	var polite []*pump
	for qid := uint16(1); qid <= 31; qid++ {
		polite = append(polite, newPump(r.open(c, qid, 2), r.buffer(c, politeSize), 1))
	}
	greedy := newPump(r.open(c, 32, depth), r.buffer(c, greedySize*(depth-1)), depth-1)
	everyone := append(slices.Clone(polite), greedy)
	for round := 1; ; round++ {
		alone, beside := p99(t, polite, polite), p99(t, everyone, polite)
		t.Logf("p99 of the polite queues: %v alone, %v beside the greedy one", alone, beside)
		if beside <= 2*alone {
			return
		}
		if round == 20 {
			t.Fatalf("a greedy queue makes others wait: p99 %v instead of %v", beside, alone)
		}
	}
}

// pump keeps reads in flight on a queue.
type pump struct {
	q         *host.Queue
	data      [][]byte // per slot
	began     []time.Time
	idle      []int // slots
	done      []host.Completion
	latencies []time.Duration
}

func newPump(q *host.Queue, memory []byte, depth int) *pump {
	p := &pump{q: q, began: make([]time.Time, depth), done: make([]host.Completion, depth)}
	size := len(memory) / depth
	for i := range depth {
		p.data = append(p.data, memory[i*size:(i+1)*size])
		p.idle = append(p.idle, i)
	}
	return p
}

// step submits what is free if more is set, and takes what has been completed.
func (p *pump) step(t *testing.T, more bool) {
	const blockSize, blocks = 4096, 64 << 20 / 4096
	for more && len(p.idle) > 0 {
		slot := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		n := uint64(len(p.data[slot]) / blockSize)
		var op host.Op
		op.Read(2, uint64(len(p.latencies))*n%(blocks-n), uint32(n), p.data[slot])
		op.Token = uint64(slot)
		p.began[slot] = time.Now()
		if _, err := p.q.Submit(&op); err != nil {
			t.Fatal(err)
		}
	}
	n, err := p.q.Poll(p.done)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.done[:n] {
		if !p.done[i].Status().OK() {
			t.Fatal(p.done[i].Status())
		}
		slot := int(p.done[i].Token)
		p.latencies = append(p.latencies, time.Since(p.began[slot]))
		p.idle = append(p.idle, slot)
	}
}

// p99 runs pumps for a while, all on this goroutine, and returns the 99th percentile of the
// latencies of some of them.
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
	if len(all) == 0 {
		t.Fatal("not one read")
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}
