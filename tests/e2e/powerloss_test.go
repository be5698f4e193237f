package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

var seedFlag = flag.Uint64("powerloss.seed", rand.Uint64(),
	"of TestPowerLoss; what depends on the scheduler differs all the same")

const (
	crashes      = 200
	stormQueues  = 3
	stormDepth   = 16
	stormOps     = 128 // of each queue at most
	stormBlocks  = 8   // of a write at most
	stormSpan    = 64  // blocks that are written
	stormStep    = 2 * stormQueues * stormOps
	stormMemory  = stormBlocks * 4096
	stormDevices = 2
)

// machine is a target with its disks, which outlive it.
type machine struct {
	disks  [stormDevices]*volatileDisk
	ledger *ledger
	nextID uint64 // of writes
}

func newMachine(l lies) *machine {
	m := &machine{ledger: newLedger(), nextID: 1}
	m.disks[0] = &volatileDisk{block: 4096, limit: 16 << 10, lies: l}
	m.disks[1] = &volatileDisk{block: 512, limit: 2 << 10, lies: l, cache: true}
	for _, d := range m.disks {
		d.medium = make([]byte, stormSpan*d.block)
	}
	return m
}

// TestPowerLoss serves two disks with volatile caches over TCP, lets the power fail in the middle
// of writes, flushes and writes with FUA, and serves what is left, over and over: what was
// acknowledged as durable is there, and no block is torn.
func TestPowerLoss(t *testing.T) {
	for _, engine := range []string{disk.Threads, disk.Auto} {
		t.Run(engine, func(t *testing.T) {
			t.Logf("-powerloss.seed=%d", *seedFlag)
			m := newMachine(lies{})
			for i := range crashes / 2 {
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

// TestPowerLossOfLiars: the same with disks that lie is found out.
func TestPowerLossOfLiars(t *testing.T) {
	for name, l := range map[string]lies{
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
			t.Errorf("-powerloss.seed=%d: %d crashes have lost nothing", *seedFlag, crashes)
		})
	}
}

// crash starts the target on what there is, lets the power fail at some moment and returns what is
// wrong with what survived.
func (m *machine) crash(t *testing.T, engine string, i int) (wrong []error) {
	t.Run(fmt.Sprintf("crash %d", i), func(t *testing.T) {
		rng := rand.New(rand.NewPCG(*seedFlag, uint64(i)))
		s := &supply{rng: rand.New(rand.NewPCG(*seedFlag, uint64(i)+1<<32)), left: 1 +
			rng.IntN(stormStep), failed: make(chan struct{})}
		o := options{reactors: 2, arena: 8 << 20}
		for _, d := range m.disks {
			d.engine, d.flushes = engine, 0
			if d.lies.failure || rng.IntN(4) == 0 {
				d.flushes = 1 + rng.IntN(10)
			}
			dev, err := d.open(s)
			if err != nil {
				t.Fatal(err)
			}
			o.devices = append(o.devices, dev)
		}
		r := newRig(t, o)
		c := r.connect(ways[0])
		through := rng.IntN(8) == 0
		if through { // every write is as if with FUA
			_, err := c.SetFeature(testContext(t), nvme.FeatureVolatileWriteCache, 0)
			r.must(err)
		}
		var wg sync.WaitGroup
		for n := range stormQueues {
			w := &storm{
				m: m, rng: rand.New(rand.NewPCG(*seedFlag, uint64(i*stormQueues+n))),
				q:   r.open(c, uint16(n+1), stormDepth),
				buf: r.buffer(c, stormDepth*stormMemory), through: through, id: m.nextID +
					uint64(n*stormOps), failed: s.failed,
			}
			wg.Go(func() { w.run(t) })
		}
		wg.Wait()
		m.nextID += stormQueues * stormOps
		s.cut()
		c.Close()
		r.stop()
		for _, d := range m.disks {
			d.lose()
		}
		wrong = m.ledger.settle(func(p place) []byte { return m.disks[p.nsid-1].at(int64(p.lba)) })
	})
	return wrong
}

// storm is a host's use of one queue. What it keeps of a command is at the place of its data in
// buf.
type storm struct {
	m       *machine
	rng     *rand.Rand
	q       *host.Queue
	buf     []byte
	through bool // nothing stays in the cache
	id      uint64
	failed  <-chan struct{}
	sent    [stormDepth]sent
	free    []int
}

// sent is a command under way.
type sent struct {
	op     host.Op
	deeds  []*deed // of a write
	flush  uint64  // when it was sent
	nsid   uint32
	slba   uint64
	blocks uint32
}

// run keeps the queue full until the power fails, or it has done enough, and cuts the connection,
// at once or when nothing more comes.
func (w *storm) run(t *testing.T) {
	defer func() { _ = w.q.Close() }()
	patient := w.rng.IntN(2) == 0
	for i := range w.q.Depth() {
		w.free = append(w.free, i)
	}
	var done [stormDepth]host.Completion
	for n := 0; n < stormOps || w.q.Outstanding() > 0; {
		select {
		case <-w.failed:
			if !patient {
				return
			}
			n = stormOps
		default:
		}
		for ; n < stormOps && len(w.free) > 0; n++ {
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

func (w *storm) submit() error {
	token := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	s := &w.sent[token]
	*s = sent{nsid: 1 + w.rng.Uint32N(stormDevices), slba: w.rng.Uint64N(stormSpan), blocks: 1 +
		w.rng.Uint32N(stormBlocks)}
	s.blocks = min(s.blocks, stormSpan-uint32(s.slba))
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
		s.op.WriteZeroes(s.nsid, s.slba, s.blocks,
			flags|nvme.RWFlags(w.rng.IntN(2))*nvme.RWDeallocate)
		s.deeds = w.m.ledger.send(0, s.nsid, s.slba, s.blocks)
	default:
		w.id++
		block := len(data) / int(s.blocks)
		for i := range s.blocks {
			describe(data[int(i)*block:][:block], place{s.nsid, s.slba + uint64(i)}, w.id)
		}
		s.op.Write(s.nsid, s.slba, s.blocks, data, flags)
		s.deeds = w.m.ledger.send(w.id, s.nsid, s.slba, s.blocks)
	}
	s.op.Token = uint64(token)
	_, err := w.q.Submit(&s.op)
	return err
}

// data is the memory of a command, of as many bytes as its blocks have.
func (w *storm) data(token int) []byte {
	s := &w.sent[token]
	return w.buf[token*stormMemory:][:int64(s.blocks)*w.m.disks[s.nsid-1].block]
}

// finish notes what the answer to a command promises. Blocks that were read are whole.
func (w *storm) finish(t *testing.T, token int, ok bool) {
	s := &w.sent[token]
	w.free = append(w.free, token)
	switch {
	case !ok:
	case s.flush != 0:
		w.m.ledger.flushed(s.nsid, s.flush)
	case s.deeds != nil:
		w.m.ledger.acked(s.deeds, w.through || s.op.SQE.RW().Flags()&nvme.RWFUA != 0)
	default:
		data := w.data(token)
		block := len(data) / int(s.blocks)
		for i := range s.blocks {
			if _, err := recognise(data[int(i)*block:][:block],
				place{s.nsid, s.slba + uint64(i)}); err != nil {
				t.Errorf("read of block %d of namespace %d: %v", s.slba+uint64(i), s.nsid, err)
			}
		}
	}
}
