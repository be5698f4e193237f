package random

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
)

var seedFlag = flag.Uint64("powerloss.seed", rand.Uint64(),
	"seed of TestPowerLoss; a run also depends on the scheduler")

const (
	crashes     = 200
	loadQueues  = 3
	loadDepth   = 16
	loadOps     = 128 // maximum of each queue
	loadBlocks  = 8   // maximum of a write
	loadSpan    = 64  // blocks to write
	loadStep    = 2 * loadQueues * loadOps
	loadMemory  = loadBlocks * 4096
	loadDevices = 2
)

// machine has the disks, which survive the target.
type machine struct {
	disks  [loadDevices]*volatileDisk
	ledger *ledger
	nextID uint64 // of writes
}

func newMachine(l faults) *machine {
	m := &machine{ledger: newLedger(), nextID: 1}
	m.disks[0] = &volatileDisk{block: 4096, limit: 16 << 10, faults: l}
	m.disks[1] = &volatileDisk{block: 512, limit: 2 << 10, faults: l, cache: true}
	for _, d := range m.disks {
		d.medium = make([]byte, loadSpan*d.block)
	}
	return m
}

// TestPowerLoss repeatedly serves two disks with volatile caches over TCP and makes the power fail
// in the middle of writes, flushes and writes with FUA. Data acknowledged as durable survives, and
// no block is torn.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{disk.Threads, disk.Auto} {
		t.Run(engine, func(t *testing.T) {
			t.Logf("-powerloss.seed=%d", *seedFlag)
			m := newMachine(faults{})
			for i := range testutil.Rounds(12, crashes/2) {
				for _, err := range m.crash(t, engine, i) {
					t.Errorf("crash %d: %v", i, err)
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

// TestPowerLossOfFaultyDisks: the same test detects disks with faults.
func TestPowerLossOfFaultyDisks(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]faults{
		"flush does nothing": {flush: true}, "FUA does nothing": {fua: true},
		"a failed flush succeeds": {failure: true},
		"blocks are torn":         {tear: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(l)
			for i := range crashes {
				if wrong := m.crash(t, disk.Threads, i); len(wrong) > 0 {
					t.Logf("crash %d: %v", i, wrong[0])
					return
				}
			}
			t.Errorf("-powerloss.seed=%d: nothing was lost in %d crashes", *seedFlag, crashes)
		})
	}
}

// crash starts the target on the surviving content, makes the power fail at some time and returns
// the errors found in the surviving content.
func (m *machine) crash(t *testing.T, engine string, i int) (wrong []error) {
	t.Run(fmt.Sprintf("crash %d", i), func(t *testing.T) {
		rng := rand.New(rand.NewPCG(*seedFlag, uint64(i)))
		s := &supply{
			rng:  rand.New(rand.NewPCG(*seedFlag, uint64(i)+1<<32)),
			left: 1 + rng.IntN(loadStep), failed: make(chan struct{}),
		}
		o := e2e.Options{Reactors: 2, Memory: 8}
		for _, d := range m.disks {
			d.engine, d.flushes = engine, 0
			if d.faults.failure || rng.IntN(4) == 0 {
				d.flushes = 1 + rng.IntN(10)
			}
			dev := testutil.Value(d.open(s))(t)
			o.Devices = append(o.Devices, dev)
		}
		h := e2e.New(t, o)
		c := h.Dial(e2e.Plain[0])
		through := rng.IntN(8) == 0
		if through { // every write counts as a write with FUA
			_, err := c.SetFeature(testutil.Context(t), nvme.FeatureVolatileWriteCache, 0)
			h.Must(err)
		}
		var wg sync.WaitGroup
		for n := range loadQueues {
			w := &workload{
				m: m, rng: rand.New(rand.NewPCG(*seedFlag, uint64(i*loadQueues+n))),
				q: h.Open(c, uint16(n+1), loadDepth), buf: h.Buffer(c, loadDepth*loadMemory),
				through: through, id: m.nextID + uint64(n*loadOps), failed: s.failed,
			}
			wg.Go(func() { w.run(t) })
		}
		wg.Wait()
		m.nextID += loadQueues * loadOps
		s.cut()
		c.Close()
		h.Stop()
		for _, d := range m.disks {
			d.lose()
		}
		wrong = m.ledger.check(func(p place) []byte { return m.disks[p.nsid-1].at(int64(p.lba)) })
	})
	return wrong
}

// workload is the I/O of a host on one queue. The data of the command with token i is the i-th part
// of buf.
type workload struct {
	m       *machine
	rng     *rand.Rand
	q       *host.Queue
	buf     []byte
	through bool // the volatile cache is off
	id      uint64
	failed  <-chan struct{}
	sent    [loadDepth]sent
	free    []int
}

// sent is a command in flight.
type sent struct {
	op     host.Op
	writes []*blockWrite // of a write
	flush  uint64        // the time when it was sent
	nsid   uint32
	slba   uint64
	blocks uint32
}

// run keeps the queue full until the power fails or loadOps commands were sent. Then it
// disconnects, at once or after the last completion.
func (w *workload) run(t *testing.T) {
	defer func() { _ = w.q.Close() }()
	waits := w.rng.IntN(2) == 0
	for i := range w.q.Depth() {
		w.free = append(w.free, i)
	}
	var done [loadDepth]host.Completion
	for n := 0; n < loadOps || w.q.Outstanding() > 0; {
		select {
		case <-w.failed:
			if !waits {
				return
			}
			n = loadOps
		default:
		}
		for ; n < loadOps && len(w.free) > 0; n++ {
			if err := w.submit(); err != nil {
				t.Error(err)
				return
			}
		}
		k, err := w.q.Poll(done[:])
		for i := range done[:k] {
			w.finish(t, int(done[i].Token), done[i].Status().OK())
		}
		if k == 0 && err == nil && w.q.Outstanding() > 0 {
			err = w.q.Wait(time.Second)
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

func (w *workload) submit() error {
	token := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	s := &w.sent[token]
	*s = sent{
		nsid: 1 + w.rng.Uint32N(loadDevices), slba: w.rng.Uint64N(loadSpan),
		blocks: 1 + w.rng.Uint32N(loadBlocks),
	}
	s.blocks = min(s.blocks, loadSpan-uint32(s.slba))
	data := w.data(token)
	var flags nvme.RWFlags
	if w.rng.IntN(4) == 0 {
		flags = nvme.RWFUA
	}
	switch what := w.rng.IntN(16); {
	case what < 4:
		s.op.Read(s.nsid, s.slba, s.blocks, data)
	case what < 6:
		if w.rng.IntN(4) == 0 {
			s.nsid = nvme.NSIDAll
		}
		s.op.Flush(s.nsid)
		s.flush = w.m.ledger.now()
	case what < 8:
		hosttest.SetWriteZeroes(&s.op, s.nsid, s.slba, s.blocks,
			flags|nvme.RWFlags(w.rng.IntN(2))*nvme.RWDeallocate)
		s.writes = w.m.ledger.send(0, s.nsid, s.slba, s.blocks)
	default:
		w.id++
		block := len(data) / int(s.blocks)
		for i := range s.blocks {
			stampBlock(data[int(i)*block:][:block], place{s.nsid, s.slba + uint64(i)}, w.id)
		}
		s.op.Write(s.nsid, s.slba, s.blocks, data, flags)
		s.writes = w.m.ledger.send(w.id, s.nsid, s.slba, s.blocks)
	}
	s.op.Token = uint64(token)
	_, err := w.q.Submit(&s.op)
	return err
}

// data is the memory of a command, with the size of its blocks.
func (w *workload) data(token int) []byte {
	s := &w.sent[token]
	return w.buf[token*loadMemory:][:int64(s.blocks)*w.m.disks[s.nsid-1].block]
}

// finish records the promise of a completed command, and checks that no block read is torn.
func (w *workload) finish(t *testing.T, token int, ok bool) {
	s := &w.sent[token]
	w.free = append(w.free, token)
	switch {
	case !ok:
	case s.flush != 0:
		w.m.ledger.flushed(s.nsid, s.flush)
	case s.writes != nil:
		w.m.ledger.acked(s.writes, w.through || s.op.SQE.RW().Flags()&nvme.RWFUA != 0)
	default:
		data := w.data(token)
		block := len(data) / int(s.blocks)
		for i := range s.blocks {
			if _, err := identify(data[int(i)*block:][:block],
				place{s.nsid, s.slba + uint64(i)}); err != nil {
				t.Errorf("read of block %d of namespace %d: %v", s.slba+uint64(i), s.nsid, err)
			}
		}
	}
}
