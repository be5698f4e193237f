package target

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// markStore is a marks.Store in memory.
type markStore struct {
	mu    sync.Mutex
	kept  map[uint32]*marks.Kept // by NSID
	err   error
	calls int
	gate  chan struct{} // each change takes one, unless it is nil
	wake  func()
}

func newMarkStore() *markStore { return &markStore{kept: map[uint32]*marks.Kept{}} }

func (s *markStore) Load(_ string, nsid uint32) *marks.Kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[nsid]
}

func (s *markStore) Save(_ string, nsid uint32, u *marks.Kept) error {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	if s.calls++; s.err != nil {
		return s.err
	}
	if s.kept[nsid] = u; u == nil {
		delete(s.kept, nsid)
	}
	return nil
}

func (s *markStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// blocks are the ranges that are kept of namespace 1, in blocks of 512 bytes.
func (s *markStore) blocks() (list [][2]int64) {
	if u := s.Load("", 1); u != nil {
		for _, r := range u.Ranges {
			list = append(list, [2]int64{r.Off / 512, r.End / 512})
		}
	}
	return list
}

// durable is a RAM device that says that its content outlives it, with a volatile cache.
func durable(t testing.TB) *backendtest.Faulty {
	dev := backendtest.NewFaulty(&recorder{
		Device: ramDeviceOpen(t, 4<<20, 512),
		info: func(i *backend.Info) {
			i.Volatile, i.VolatileCache, i.Identity = false, true, "a"
		},
	})
	closeLast(t, dev)
	return dev
}

func markHarness(t *testing.T, store *markStore, devs ...backend.Device) (*harness, *host) {
	t.Helper()
	sub := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	for i, d := range devs {
		sub.Namespaces = append(sub.Namespaces, namespaces.Config{NSID: uint32(i + 1), Device: d})
	}
	r := newHarness(t, 2)
	r.target.shared.Uncorrectable, store.wake = store, r.w.Reactors[0].Wake
	r.must(r.target.AddSubsystem(sub))
	return r, r.connectHost(2)
}

func mark(slba uint64, n uint32) *fabrictest.Command {
	return rw(nvme.NVMWriteUncorrectable, 1, slba, n, nil)
}

const unrecovered = nvme.UnrecoveredReadError | nvme.DNR

// TestMarksAreStored: a command that changes the marks of storage that outlives the target
// completes when that is stored, and fails if it is not; blocks stay marked then, and data that
// takes the place of a mark is durable.
func TestMarksAreStored(t *testing.T) {
	dev, store := durable(t), newMarkStore()
	store.gate = make(chan struct{}, 1)
	r, h := markHarness(t, store, dev)
	q := h.io[0]
	r.ok(q, readAt(0)) // opens the channel
	waits := func(c *fabrictest.Command) *fabrictest.Command {
		t.Helper()
		r.send(q, c)
		r.w.Settle()
		testutil.MustTrue(t, !c.Done, "%#x has completed with %v before it was stored",
			c.SQE.Opcode(), c.CQE.Status())
		store.gate <- struct{}{}
		r.until("it is stored", func() bool { return c.Done })
		return c
	}
	testutil.MustEqual(t, waits(mark(5, 3)).CQE.Status(), nvme.Success, "")
	rec := dev.Device.(*recorder)
	rec.take()
	waits(rw(nvme.NVMWrite, 1, 6, 1, make([]byte, 512)))
	l := rec.take()
	testutil.True(t, len(l) == 1 && l[0].Flags&backend.FUA != 0, "the device got %+v", l)
	got := store.blocks()
	testutil.True(t, reflect.DeepEqual(got, [][2]int64{{5, 6}, {7, 8}}), "kept: %v", got)
	r.ok(q, readAt(6))

	store.fail(errors.New("full"))
	for _, c := range []*fabrictest.Command{
		rw(nvme.NVMWrite, 1, 7, 1, make([]byte, 512)), mark(20, 1),
	} {
		if st := waits(c).CQE.Status() &^ nvme.More; st != nvme.InternalError {
			t.Errorf("%#x: %v", c.SQE.Opcode(), st)
		}
	}
	r.status(q, readAt(7), unrecovered)
	r.status(q, readAt(20), unrecovered) // the store may have it
	store.fail(nil)
	waits(rw(nvme.NVMWrite, 1, 7, 14, make([]byte, 14*512)))
	r.ok(q, readAt(20))
	got = store.blocks()
	testutil.True(t, reflect.DeepEqual(got, [][2]int64{{5, 6}}), "kept: %v", got)
	close(store.gate)
}

// TestMarksAfterRestart: a namespace has the marks of its storage, for the blocks that the storage
// still has.
func TestMarksAfterRestart(t *testing.T) {
	store := newMarkStore()
	start := func(dev backend.Device, fn func(r *harness, h *host)) {
		t.Helper()
		t.Run("", func(t *testing.T) {
			r, h := markHarness(t, store, dev)
			fn(r, h)
		})
	}
	other := func(change func(*backend.Info)) backend.Device {
		return &recorder{Device: durable(t), info: change}
	}
	start(durable(t), func(r *harness, h *host) { r.ok(h.io[0], mark(8000, 2)) })
	start(durable(t), func(r *harness, h *host) {
		r.status(h.io[0], readAt(8001), unrecovered)
		r.removeNamespace(1)
		r.must(r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: durable(t)}))
		r.status(h.io[0], readAt(8001), unrecovered)
	})
	stored := func(r *harness, want [][2]int64) {
		r.t.Helper()
		r.until("the store", func() bool { return reflect.DeepEqual(store.blocks(), want) })
	}
	start(other(func(i *backend.Info) { i.Size = 8001 * 512 }), func(r *harness, _ *host) {
		stored(r, [][2]int64{{8000, 8001}})
	})
	start(other(func(i *backend.Info) { i.Identity = "b" }), func(r *harness, h *host) {
		r.ok(h.io[0], readAt(8000))
		stored(r, nil)
		r.ok(h.io[0], mark(1, 1))
		x, _ := r.exchange(namespaces.Config{})
		r.must(x.end(durable(t), nil))
		r.ok(h.io[0], readAt(1))
		stored(r, nil)
		r.ok(h.io[0], mark(2, 1))
		stored(r, [][2]int64{{2, 3}})
		r.removeNamespace(1)
		r.target.ForgetNamespace(testSub, 1)
		stored(r, nil)
		r.must(store.Save("", 1, &marks.Kept{Identity: "a"}))
		r.target.ForgetNamespace(testSub, 1) // of a namespace that was not there
		testutil.True(t, store.Load("", 1) == nil, "the store was not asked to forget")
	})
	start(ramDevice(t, 1<<20, 512), func(r *harness, h *host) {
		r.ok(h.io[0], mark(1, 1))
		r.status(h.io[0], readAt(1), unrecovered)
	})
	testutil.True(t, store.blocks() == nil, "marks of memory were stored")
}

// TestMarksOfStorageThatComesBack: a mark that could not be removed from the store would come back
// with a restart, over data written since. So it is there until its block is written.
func TestMarksOfStorageThatComesBack(t *testing.T) {
	store := newMarkStore()
	r, h := markHarness(t, store, durable(t))
	q := h.io[0]
	r.ok(q, mark(7, 1))
	store.fail(errors.New("full"))
	x, a := r.exchange(namespaces.Config{})
	r.must(x.end(&recorder{Device: ramDevice(t, 4<<20, 512), info: func(i *backend.Info) {
		i.Volatile, i.Identity = false, "b"
	}}, nil))
	r.ok(q, readAt(7))
	x, _ = r.exchange(namespaces.Config{})
	r.must(x.end(a, nil))
	r.status(q, readAt(7), unrecovered)
	store.fail(nil)
	r.ok(q, rw(nvme.NVMWrite, 1, 7, 1, fill(1, 512)))
	l := store.blocks()
	testutil.True(t, l == nil, "kept: %v", l)
}

// TestCutDoesNotWait: storage that has become smaller while the target was stopped is added while
// the store does not answer. Blocks marked afterwards stay marked.
func TestCutDoesNotWait(t *testing.T) {
	store := newMarkStore()
	store.kept[1] = &marks.Kept{
		Identity: "a", Ranges: []backend.Range{{Off: 8192 * 512, End: 8193 * 512}},
	}
	store.gate = make(chan struct{})
	timeout := time.AfterFunc(5*time.Second, func() {
		t.Error("adding a namespace waits for the store")
		close(store.gate)
	})
	r, h := markHarness(t, store, durable(t))
	if timeout.Stop() {
		close(store.gate)
	}
	r.ok(h.io[0], mark(0, 1))
	r.until("the store", func() bool {
		return reflect.DeepEqual(store.blocks(), [][2]int64{{0, 1}})
	})
}

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
			hidden = hidden || x.ok && x.value != value && o.end < x.start && x.end < start &&
				!h.lifts(x, o)
		}
		if !hidden {
			return true
		}
	}
	return false
}

// lifts reports whether the mark that read x has found may be gone, and the value of write o be
// there: a later write removes the mark, but concurrent writes reach the device in any order.
func (h blockHistory) lifts(x, o blockOp) bool {
	return x.read && x.value == isMarked && slices.ContainsFunc(h, func(w blockOp) bool {
		return !w.read && w.value != isMarked && w.start < o.end && x.start < w.end
	})
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
	testutil.MustTrue(x.t, h.explains(value, start, end),
		"seed %d: %s from %d to %d of block %d: %d: %+v", x.seed, what, start, end, b, int32(value),
		h)
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

// protectionStore is a ProtectionStore in memory.
type protectionStore struct {
	mu   sync.Mutex
	kept map[uint32]bool // by NSID
	err  error
	hung chan struct{} // not nil: changes that are made wait for it

	entered chan struct{} // gets a value from each change that waits
}

func (s *protectionStore) Protected(_ string, nsid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[nsid]
}

func (s *protectionStore) SetProtected(_ string, nsid uint32, protected bool) error {
	s.mu.Lock()
	err := s.err
	if err == nil {
		s.kept[nsid] = protected
	}
	s.mu.Unlock()
	if s.hung != nil {
		s.entered <- struct{}{}
		<-s.hung
	}
	return err
}

func newProtectionStore() *protectionStore { return &protectionStore{kept: map[uint32]bool{}} }

// protectHarness has a target on which hosts can write protect namespaces.
func protectHarness(t *testing.T, store *protectionStore, sub subsystems.Config) *harness {
	t.Helper()
	r := newHarness(t, 2)
	r.target.shared.Protection = store
	r.must(r.target.AddSubsystem(sub))
	return r
}

func protectCommand(nsid uint32, to nvme.WriteProtection) *fabrictest.Command {
	return withNSID(setFeature(nvme.FeatureWriteProtect, uint32(to)), nsid)
}

// protected checks the write protection of a namespace as the host sees it.
func (h *host) protected(nsid uint32, state nvme.WriteProtection) {
	h.r.t.Helper()
	get := withNSID(getFeature(nvme.FeatureWriteProtect, nvme.FeatureCurrent, 0), nsid)
	if got := h.r.ok(h.admin, get).CQE.DW0(); got != uint32(state) {
		h.r.t.Errorf("namespace %d: state %d, want %d", nsid, got, state)
	}
	st, attr := nvme.Success, nvme.NSATTR(0)
	if state != nvme.NoWriteProtect {
		st, attr = writeProtected, nvme.NSATTRWriteProtected
	}
	testutil.Equal(h.r.t, h.namespace(nsid).NSATTR, attr, "namespace %d: NSATTR", nsid)
	h.r.status(h.io[0], rw(nvme.NVMWrite, nsid, 0, 1, make([]byte, 512)), st)
	h.r.status(h.io[0], rw(nvme.NVMWriteZeroes, nsid, 0, 1, nil), st)
	h.r.status(h.io[0], dsm(nsid, true, [2]uint64{0, 1}), st)
	h.r.ok(h.io[0], rw(nvme.NVMRead, nsid, 0, 1, make([]byte, 512)))
	h.r.ok(h.io[0], command(nvme.NVMFlush, nsid, nil))
}

// TestWriteProtectionWaits: a namespace is protected when its device has finished every write and
// has flushed them. Another change meanwhile is to be tried again.
func TestWriteProtectionWaits(t *testing.T) {
	held := faultyDevice(t, 1<<20, 512)
	dev := &recorder{Device: held, info: func(*backend.Info) {}}
	r := protectHarness(t, newProtectionStore(), subsystemOf(testSub, dev))
	h := r.connectHost(2)
	r.ok(h.io[1], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // opens the channel
	held.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
	before := r.send(h.io[1], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the write", func() bool { return held.Held() == 1 })
	protect := r.send(h.admin, protectCommand(1, nvme.WriteProtect))
	ch := r.raw[0].channel(r.target.find(testSub).Namespaces.Load().Get(1))
	r.until("commands wait", func() bool { return protect.Done || quiesced(ch) })
	r.status(h.admin, protectCommand(1, nvme.NoWriteProtect), nvme.CommandInterrupted)
	testutil.MustTrue(t, !protect.Done, "protected while the device has a write")
	held.Release()
	r.until("it is protected", func() bool { return protect.Done })
	testutil.True(t, protect.CQE.Status().OK() && before.Done && before.CQE.Status().OK(),
		"protection %v; write %v, %v", protect.CQE.Status(), before.Done, before.CQE.Status())
	l := dev.take()
	if n := len(l); n == 0 || l[n-1].Op != backend.OpFlush {
		t.Errorf("the device got %v, and no flush at the end", l)
	}
	h.protected(1, nvme.WriteProtect)
}

// TestWriteProtectionStalls: hosts read and write while the store, a cluster for instance, does not
// answer. The command has succeeded when the namespace is protected.
func TestWriteProtectionStalls(t *testing.T) {
	store := newProtectionStore()
	store.hung, store.entered = make(chan struct{}), make(chan struct{}, 1)
	r := protectHarness(t, store, subsystemOf(testSub, faultyDevice(t, 1<<20, 512)))
	h := r.connectHost(1)
	goOn := sync.OnceFunc(func() { close(store.hung) })
	defer goOn()
	protect := r.send(h.admin, protectCommand(1, nvme.WriteProtect))
	r.during(func() error { <-store.entered; return nil })
	h.protected(1, nvme.NoWriteProtect)
	testutil.True(t, !protect.Done, "it is answered")
	goOn()
	r.until("the command completes", func() bool { return protect.Done })
	testutil.True(t, protect.CQE.Status().OK(), "%v", protect.CQE.Status())
	h.protected(1, nvme.WriteProtect)
}

// TestWriteProtectionAgain: a namespace that is removed and added while its protection ends has the
// one that is kept when that has failed.
func TestWriteProtectionAgain(t *testing.T) {
	store := newProtectionStore()
	store.hung, store.entered = make(chan struct{}), make(chan struct{}, 1)
	store.kept[1] = true
	dev, next := faultyDevice(t, 1<<20, 512), faultyDevice(t, 1<<20, 512)
	r := protectHarness(t, store, subsystemOf(testSub, dev))
	h := r.connectHost(1)
	goOn := sync.OnceFunc(func() { close(store.hung) })
	defer goOn()
	end := r.send(h.admin, protectCommand(1, nvme.NoWriteProtect))
	r.during(func() error { <-store.entered; return nil })
	testutil.Value(r.target.RemoveNamespace(testSub, 1))(t)
	r.must(r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: next}))
	goOn()
	r.until("the command completes", func() bool { return end.Done })
	testutil.True(t, !end.CQE.Status().OK() && store.Protected("", 1), "the protection has ended")
	h.protected(1, nvme.WriteProtect)
}

// TestWriteProtectionEnds: a host that leaves while its command waits leaves nothing behind.
func TestWriteProtectionEnds(t *testing.T) {
	held := faultyDevice(t, 1<<20, 512)
	store := newProtectionStore()
	r := protectHarness(t, store, subsystemOf(testSub, held))
	h, other := r.connectHost(0), r.connectHost(1)
	r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	held.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
	write := r.send(other.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the write", func() bool { return held.Held() == 1 })
	r.send(h.admin, protectCommand(1, nvme.WriteProtect))
	r.w.Settle()
	h.hangUp()
	held.Release()
	r.until("the controller has ended", func() bool { return len(r.target.Controllers()) == 1 })
	testutil.True(t, write.Done && store.Protected("", 1), "write %v, protected %v", write.Done,
		store.Protected("", 1))
}

// TestWriteProtectionLost: a host that loses the subsystem, or the namespace, while its command
// waits protects nothing any more.
func TestWriteProtectionLost(t *testing.T) {
	for name, lose := range map[string]func(r *harness) error{
		"subsystem": func(r *harness) error {
			_, err := r.target.UpdateSubsystem(subsystems.Config{
				NQN: testSub, Hosts: []string{otherHost},
			})
			return err
		},
		"namespace": func(r *harness) error {
			_, err := r.target.RemoveNamespace(testSub, 1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			held := faultyDevice(t, 1<<20, 512)
			store := newProtectionStore()
			r := protectHarness(t, store, subsystemOf(testSub, held))
			h, other := r.connectHost(0), r.connectHost(1, asOther)
			r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			held.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
			r.send(other.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
			r.until("the device has the write", func() bool { return held.Held() == 1 })
			c := r.send(h.admin, protectCommand(1, nvme.WriteProtect))
			ns := r.target.find(testSub).Namespaces.Load().Get(1)
			ch := r.raw[1].channel(ns)
			r.until("commands wait", func() bool { return quiesced(ch) })
			r.must(lose(r))
			held.Release()
			r.during(func() error {
				_ = ns.Resume() // waits for the change in progress
				return nil
			})
			r.until("it is not kept", func() bool { return !store.Protected("", 1) })
			if name == "namespace" {
				r.until("the command completes", func() bool { return c.Done })
				testutil.Equal(t, c.CQE.Status()&^nvme.More, inactiveNamespace, "")
			}
		})
	}
}

// TestRestorePromises: write protection and marks that the stores have from another target are in
// force when the device is back, also for an earlier write with data that comes later. A state that
// ends with the power is refused.
func TestRestorePromises(t *testing.T) {
	held, store, protection := durable(t), newMarkStore(), newProtectionStore()
	dev := &changing{Device: held, i: held.Info()}
	r := newHarness(t, 1)
	r.target.shared.Reservations = new(memoryStore)
	r.target.shared.Uncorrectable, store.wake = store, r.w.Reactors[0].Wake
	r.target.shared.Protection = protection
	sub := subsystemOf(testSub, dev)
	r.must(r.target.AddSubsystem(sub))
	h := r.connectHost(1)
	q, promises := h.io[0], r.target.Reservations(testSub, 1)
	kept := &marks.Kept{Identity: "a", Ranges: []backend.Range{{Off: 512, End: 1024}}}
	offline := func(is bool) {
		dev.i.Offline = is
		dev.notify()
	}
	takeOver := func(protected bool, m *marks.Kept) {
		t.Helper()
		promises.Move(reservation.Elsewhere)
		offline(true)
		r.status(h.admin, protectCommand(1, nvme.WriteProtect), nvme.ANAInaccessible)
		get := withNSID(getFeature(nvme.FeatureWriteProtect, nvme.FeatureCurrent, 0), 1)
		r.status(h.admin, get, nvme.ANAInaccessible)
		protection.kept[1] = protected
		r.during(func() error {
			r.target.RestorePromises(testSub, 1, &reservation.State{}, m)
			return nil
		})
		promises.Move(reservation.Shared)
		offline(false)
	}
	r.ok(q, readAt(1))
	takeOver(false, kept)
	h.protected(1, nvme.NoWriteProtect)
	testutil.Equal(t, h.controller().NWPC, nvme.NWPCWriteProtect, "NWPC")
	r.status(q, readAt(1), unrecovered)
	r.ok(q, rw(nvme.NVMWrite, 1, 1, 1, make([]byte, 512)))
	r.ok(q, readAt(1))
	until := protectCommand(1, nvme.WriteProtectUntilPowerCycle)
	r.status(h.admin, until, nvme.FeatureNotChangeable|nvme.DNR)
	late := rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512))
	late.Late = true
	r.send(q, late)
	r.w.Settle()
	takeOver(true, kept)
	q.Arrive(late)
	r.until("the write is done", func() bool { return late.Done })
	testutil.Equal(t, late.CQE.Status()&^nvme.More, writeProtected, "a write from before")
	h.protected(1, nvme.WriteProtect)
	r.status(q, readAt(1), unrecovered)
	r.ok(h.admin, protectCommand(1, nvme.NoWriteProtect))
	h.protected(1, nvme.NoWriteProtect)
	takeOver(false, &marks.Kept{})
	r.ok(q, readAt(1))
}
