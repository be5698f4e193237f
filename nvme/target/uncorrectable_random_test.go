package target

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

const (
	randomBlocks = 12
	isMarked     = math.MaxUint32 // the value of a marked block in the model
)

// blockOp is the effect of a command on one block, or the value that it has read, between two
// times.
type blockOp struct {
	start, end int
	value      uint32
	ok         bool // else it may not have happened
	read       bool
	durable    bool // it must outlive a power failure, too
}

// blockHistory is all that has been done to a block. Each write has another value.
type blockHistory []blockOp

// explains reports whether a block may have a value for a host that looks from start to end: there
// is one that has put it there, and nothing else since that has surely happened.
func (h blockHistory) explains(value uint32, start, end int) bool {
	for _, o := range h {
		if o.read || o.value != value || o.start >= end {
			continue
		}
		hidden := false
		for _, x := range h {
			hidden = hidden || x.ok && x.value != value && o.end < x.start && x.end < start
		}
		if !hidden {
			return true
		}
	}
	return false
}

// sentMark is a command of randomMarks.
type sentMark struct {
	*fabrictest.Command
	queue   int
	slba    uint64
	n       uint32
	value   uint32
	start   int
	durable bool
}

// medium records the content of a device, and its durable content.
type medium struct {
	backend.Device
	now, durable [randomBlocks]uint32
}

type mediumChannel struct {
	backend.Channel
	m *medium
}

func (m *medium) OpenChannel(r backend.Reactor) (backend.Channel, error) {
	ch, err := m.Device.OpenChannel(r)
	return &mediumChannel{ch, m}, err
}

func (c *mediumChannel) Submit(ios []*backend.IO) int {
	for _, io := range ios {
		if io.Op != backend.OpWrite {
			continue
		}
		data := make([]byte, io.Len)
		mem.CopySegments([]mem.Segment{{B: data}}, io.Segs)
		for i := range io.Len / 512 {
			b := io.Off/512 + i
			c.m.now[b] = binary.LittleEndian.Uint32(data[512*i:])
			if io.Flags&backend.FUA != 0 {
				c.m.durable[b] = c.m.now[b]
			}
		}
	}
	if n := c.Channel.Submit(ios); n < len(ios) {
		panic("memory is full")
	}
	return len(ios)
}

// TestRandomMarks marks, writes and reads blocks on two reactors, while the device and the store
// hold, fail and lose data. It compares the results with the history of each block, also after a
// crash or a power failure at any time.
func TestRandomMarks(t *testing.T) {
	for seed := range uint64(20) {
		x := &randomMarks{seed: seed, rnd: rand.New(rand.NewPCG(seed, 2)), store: newMarkStore()}
		x.medium = &medium{Device: ramDeviceOpen(t, 1<<20, 512)}
		x.dev = backendtest.NewFaulty(x.medium)
		if seed%4 < 2 {
			x.dev.HonorCancel()
		}
		for b := range x.blocks {
			x.blocks[b] = blockHistory{{start: -2, end: -1, ok: true, durable: true}}
		}
		dev := &recorder{Device: x.dev, info: func(i *backend.Info) {
			i.Volatile, i.VolatileCache, i.Identity = seed%5 == 0, true, "a"
		}}
		closeLast(t, dev)
		x.store.gate = make(chan struct{}, 4)
		x.harness, x.h = markHarness(t, x.store, dev)
		t.Cleanup(func() {
			x.dev.Release()
			close(x.store.gate)
		})
		for range 400 {
			x.step()
		}
		x.finish()
	}
}

// randomMarks is one run of TestRandomMarks.
type randomMarks struct {
	*harness
	seed   uint64
	rnd    *rand.Rand
	store  *markStore
	medium *medium
	dev    *backendtest.Faulty
	h      *host
	now    int
	value  uint32
	sent   []*sentMark
	blocks [randomBlocks]blockHistory
}

// step does one thing.
func (x *randomMarks) step() {
	i := x.rnd.IntN(2)
	switch n := x.rnd.IntN(100); {
	case n < 55:
		x.sendAny(i)
	case n < 60 && len(x.sent) > 0:
		c := x.sent[x.rnd.IntN(len(x.sent))]
		x.ok(x.h.admin, abortCommand(uint16(c.queue+1), c.SQE.CID()))
	case n < 64:
		x.dev.Hold(func(*backend.IO) bool { return x.rnd.IntN(2) == 0 })
	case n < 69:
		x.dev.Release()
	case n < 70:
		x.dev.Full(true)
		x.sendAny(i)
		x.sendAny(1 - i)
		x.w.Step()
		x.dev.Full(false)
	case n < 72:
		x.dev.Fail(func(io *backend.IO) error {
			if io.Op == backend.OpWrite && x.rnd.IntN(2) == 0 {
				return backend.ErrIO
			}
			return nil
		})
	case n < 75:
		x.dev.Fail(nil)
	case n < 77:
		x.store.fail(errors.New("full"))
	case n < 81:
		x.store.fail(nil)
	case n < 90:
		select {
		case x.store.gate <- struct{}{}:
			runtime.Gosched()
		default:
		}
	case n < 92:
		x.exchangeSame()
	case n < 94:
		x.crash()
	case n < 97:
		x.w.Settle()
	default:
		x.w.Step()
	}
	x.collect()
}

func (x *randomMarks) sendAny(i int) {
	x.t.Helper()
	q := x.h.io[i]
	if q.Outstanding() > 60 {
		return
	}
	x.now++
	c := &sentMark{queue: i, slba: x.rnd.Uint64N(randomBlocks), start: x.now}
	c.n = 1 + x.rnd.Uint32N(min(3, randomBlocks-uint32(c.slba)))
	switch n := x.rnd.IntN(10); {
	case n < 3:
		c.Command, c.value = mark(c.slba, c.n), isMarked
	case n < 7:
		x.value++
		c.value = x.value
		data := make([]byte, 512*c.n)
		for b := range c.n {
			binary.LittleEndian.PutUint32(data[512*b:], c.value)
		}
		c.Command = rw(nvme.NVMWrite, 1, c.slba, c.n, data)
		c.InCapsule = x.rnd.IntN(2) == 0
		if c.durable = x.rnd.IntN(3) == 0; c.durable {
			c.SQE.RW().Set(c.slba, c.n, nvme.RWFUA)
		}
	default:
		c.n = 1
		c.Command = readAt(c.slba)
	}
	x.sent = append(x.sent, c)
	x.send(q, c.Command)
	x.collect()
}

// collect adds the completed commands to the histories of their blocks, and checks the reads.
func (x *randomMarks) collect() {
	x.t.Helper()
	x.now++
	rest := x.sent[:0]
	for _, c := range x.sent {
		if !c.Done {
			rest = append(rest, c)
			continue
		}
		st := c.CQE.Status() &^ nvme.More
		if c.SQE.Opcode() == nvme.NVMRead {
			x.saw(c, st)
			continue
		}
		x.did(c, x.now, st.OK())
	}
	x.sent = rest
	x.now++
}

func (x *randomMarks) did(c *sentMark, end int, ok bool) {
	for b := c.slba; b < c.slba+uint64(c.n); b++ {
		x.blocks[b] = append(x.blocks[b], blockOp{
			start: c.start, end: end, value: c.value, ok: ok,
			durable: ok && (c.durable || c.value == isMarked),
		})
	}
}

func (x *randomMarks) saw(c *sentMark, st nvme.Status) {
	x.t.Helper()
	value := uint32(isMarked)
	if st.OK() {
		value = binary.LittleEndian.Uint32(c.Data)
	} else if st != unrecovered {
		return
	}
	x.explain("a read", c.slba, value, c.start, x.now, x.outstanding(x.blocks[c.slba], c.slba))
	x.blocks[c.slba] = append(x.blocks[c.slba], blockOp{
		start: c.start, end: x.now, value: value, ok: true, read: true,
	})
}

// outstanding adds the outstanding commands, except reads, to the history of a block.
func (x *randomMarks) outstanding(h blockHistory, b uint64) blockHistory {
	h = slices.Clone(h)
	for _, c := range x.sent {
		if c.SQE.Opcode() != nvme.NVMRead && c.slba <= b && b < c.slba+uint64(c.n) {
			h = append(h, blockOp{start: c.start, end: math.MaxInt, value: c.value})
		}
	}
	return h
}

func (x *randomMarks) explain(what string, b uint64, value uint32, start, end int,
	h blockHistory,
) {
	x.t.Helper()
	if !h.explains(value, start, end) {
		x.t.Fatalf("seed %d: %s from %d to %d of block %d: %d: %+v", x.seed, what, start, end, b,
			int32(value), h)
	}
}

// crash checks the content that a crash, and a power failure, would leave.
func (x *randomMarks) crash() {
	x.t.Helper()
	if x.seed%5 == 0 {
		return
	}
	kept := x.store.Load("", 1)
	for b := range uint64(randomBlocks) {
		is, was := x.medium.now[b], x.medium.durable[b]
		if kept != nil {
			for _, r := range kept.Ranges {
				if off := int64(b) * 512; r.Off <= off && off < r.End {
					is, was = isMarked, isMarked
				}
			}
		}
		// a read may have returned data of a command that has failed
		h := slices.DeleteFunc(x.outstanding(x.blocks[b], b), func(o blockOp) bool {
			return o.read
		})
		x.explain("a crash", b, is, x.now, x.now+1, h)
		for i := range h {
			h[i].ok = h[i].durable
		}
		x.explain("a power failure", b, was, x.now, x.now+1, h)
	}
}

// open lets everything go on.
func (x *randomMarks) open() {
	x.dev.Fail(nil)
	x.dev.Full(false)
	x.dev.Release()
	for len(x.sent) > 0 {
		x.pass()
		x.collect()
	}
}

// pass lets the store go on, and time pass.
func (x *randomMarks) pass() {
	select {
	case x.store.gate <- struct{}{}:
	default:
	}
	x.w.Advance(time.Second) // delayed commands fail later
	runtime.Gosched()
}

// exchangeSame opens the device again.
func (x *randomMarks) exchangeSame() {
	x.t.Helper()
	x.open()
	e := x.startExchange(namespaces.Config{})
	for len(e.old) == 0 {
		x.pass()
	}
	old := <-e.old
	x.sendAny(0)
	x.must(e.end(old, nil))
}

// finish ends all faults.
func (x *randomMarks) finish() {
	x.t.Helper()
	x.store.fail(nil)
	x.open()
	x.crash()
	for b := range uint64(randomBlocks) {
		x.now++
		c := &sentMark{Command: readAt(b), slba: b, n: 1, start: x.now}
		x.sent = append(x.sent, c)
		x.do(x.h.io[0], c.Command)
		x.collect()
	}
	x.h.hangUp()
	x.w.Settle()
}
