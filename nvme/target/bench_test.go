package target

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/null"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// stubQueue does as little as a queue can, so that benchmarks measure the handler.
type stubQueue struct {
	info fabric.QueueInfo
	done int
	bad  int

	noZeroCopy bool
}

func (q *stubQueue) Complete(reqs []*fabric.Request) {
	q.done += len(reqs)
	for _, r := range reqs {
		if !r.CQE.Status().OK() {
			q.bad++
		}
	}
}
func (q *stubQueue) SetDepth(int, fabric.Peer, fabric.Claim) error { return nil }
func (q *stubQueue) Hold(bool)                                     {}
func (q *stubQueue) Allow() error                                  { return nil }
func (q *stubQueue) Disconnect(error)                              {}

func (q *stubQueue) HandOverBuffers(*fabric.Request) func() { return nil }
func (q *stubQueue) Resume(*fabric.Request)                 {}

func (q *stubQueue) CanSendFrom([]mem.Segment) bool { return !q.noZeroCopy }

func (q *stubQueue) CanReceiveInto([]mem.Segment) bool { return !q.noZeroCopy }

func (q *stubQueue) Info() *fabric.QueueInfo { return &q.info }

// clockLoop has the clock of a reactor.
type clockLoop struct{ *fabrictest.Reactor }

var epoch = time.Now().Add(-time.Second)

func (clockLoop) Clock() int64 { return int64(time.Since(epoch)) }

// bare is a host that uses requests directly, without a transport or a watcher.
type bare struct {
	w    *fabrictest.World
	h    *Handler
	q    *stubQueue
	reqs []*fabric.Request
	io   fabric.Session
}

func newBare(tb testing.TB, dev namespaces.Config, depth int) *bare {
	tb.Helper()
	w := testutil.Value(fabrictest.NewWorld(1))(tb)
	t := New(Options{Log: slog.New(slog.DiscardHandler)}) // lines would be between the results
	if err := t.AddSubsystem(subsystems.Config{
		NQN: testSub, AllowAnyHost: true,
		Namespaces: []namespaces.Config{dev},
	}); err != nil {
		tb.Fatal(err)
	}
	h := testutil.Value(t.NewHandler(HandlerConfig{Loop: clockLoop{w.Reactors[0]}}))(tb)
	w.Reactors[0].Attach(h)
	b := &bare{w: w, h: h, q: &stubQueue{info: info(nvme.TransportTCP)}}
	admin, _ := h.Open(b.q)
	b.io, _ = h.Open(b.q)
	control := func(s fabric.Session, c *fabrictest.Command) { testutil.Must(tb, b.control(s, c)) }
	control(admin, adminArgs(testSub).command())
	control(admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	a := adminArgs(testSub)
	a.qid, a.cntlid, a.sqsize = 1, 1, uint16(depth-1)
	control(b.io, a.command())
	for range depth {
		b.reqs = append(b.reqs,
			&fabric.Request{Session: b.io, Queue: b.q, Segs: make([]mem.Segment, 0, 1)})
	}
	control(b.io, command(nvme.NVMFlush, 1, nil))
	testutil.MustTrue(tb, b.q.bad <= 0, "cannot connect")
	tb.Cleanup(func() {
		h.Close(admin)
		h.Close(b.io)
		done := make(chan error, 1)
		go func() {
			done <- t.Close()
			w.Reactors[0].Wake()
		}()
		if err := w.Until(func() bool { return len(done) > 0 }); err != nil || <-done != nil {
			tb.Error("close:", err)
		}
		testutil.Check(tb, w.Close())
	})
	return b
}

func (b *bare) clock() int64 { return b.h.loop.Clock() }

// control carries out a command and waits for its end.
func (b *bare) control(s fabric.Session, c *fabrictest.Command) error {
	before := b.q.done
	r := &fabric.Request{SQE: c.SQE, Session: s, Queue: b.q, HostLength: uint32(len(c.Data))}
	b.h.Prepare([]*fabric.Request{r})
	if r.Length > 0 {
		r.Segs = []mem.Segment{{B: c.Data}}
	}
	b.h.Execute([]*fabric.Request{r})
	return b.w.Until(func() bool { return b.q.done > before })
}

// run sends every request once in batches of the given size.
func (b *bare) run(op nvme.Opcode, batch int, data []byte) {
	for i := 0; i < len(b.reqs); i += batch {
		arrived := b.clock()
		part := b.reqs[i : i+batch]
		for j, r := range part {
			r.Reset()
			r.Start = arrived
			r.SQE = nvme.SQE{}
			r.SQE.SetOpcode(op)
			r.SQE.SetFlags(psdtSGL << 6)
			r.SQE.SetNSID(1)
			r.SQE.RW().Set(uint64((i+j)*8), 8, 0)
			r.HostLength = 4096
		}
		b.h.Prepare(part)
		for _, r := range part {
			if !r.ZeroCopy {
				r.Segs = append(r.Segs, mem.Segment{B: data})
			}
		}
		b.h.Execute(part)
	}
	b.h.Poll(64)
	now := b.clock()
	for _, r := range b.reqs {
		r.Spent(fabric.StageResponse, now)
		b.h.Sent(r)
		if r.ZeroCopy {
			b.h.EndZeroCopy(r)
		}
	}
}

func devices(tb testing.TB) map[string]namespaces.Config {
	n := testutil.Value(null.Open(null.Config{Size: 1 << 30, BlockSize: 512}))(tb)
	closeLast(tb, n)
	return map[string]namespaces.Config{
		"null": {NSID: 1, Device: n}, "ram": {NSID: 1, Device: ramDevice(tb, 64<<20, 512)},
	}
}

// TestNoAllocations: a read, a write and a refused command allocate nothing.
func TestNoAllocations(t *testing.T) {
	data := make([]byte, 4096)
	for name, dev := range devices(t) {
		b := newBare(t, dev, 32)
		for _, op := range []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite} {
			for _, batch := range []int{1, 32} {
				testutil.Equal(t, testutil.AllocsPerRun(50, func() { b.run(op, batch, data) }), 0,
					"%s: opcode %#x in batches of %d: allocations", name, op, batch)
			}
		}
		testutil.True(t, b.q.bad == 0, "%s: %d commands failed", name, b.q.bad)
		b.q.noZeroCopy = true
		testutil.Equal(t, testutil.AllocsPerRun(50, func() { b.run(nvme.NVMRead, 32, data) }), 0,
			"%s: reads without zero copy: allocations", name)
		testutil.Equal(t, testutil.AllocsPerRun(50, func() { b.run(0x77, 32, nil) }), 0,
			"%s: a refused command: allocations", name)
		b.h.t.shared.Uncorrectable = newMarkStore()
		testutil.Must(t, b.control(b.io, rw(nvme.NVMWriteUncorrectable, 1, 1024, 1, nil)))
		b.h.Poll(64)
		for _, op := range []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite} {
			testutil.Equal(t, testutil.AllocsPerRun(50, func() { b.run(op, 32, data) }), 0,
				"%s: opcode %#x beside marked blocks: allocations", name, op)
		}
		b.h.channels[0].Access = (&reservation.State{
			Type: nvme.ExclusiveAccessRegistrantsOnly,
			Registrants: []reservation.Registrant{
				{Host: reservation.Host{HostID: testHostID, NQN: testHost}},
			},
		}).Access()
		b.q.bad = 0
		n := testutil.AllocsPerRun(50, func() { b.run(nvme.NVMWrite, 32, data) })
		testutil.True(t, n == 0 && b.q.bad == 0, "%s: reserved: %v allocations, %d commands failed",
			name, n, b.q.bad)
	}
}

func BenchmarkIO(b *testing.B) {
	data := make([]byte, 4096)
	for name, dev := range devices(b) {
		for _, op := range []nvme.Opcode{nvme.NVMRead, nvme.NVMWrite} {
			for _, batch := range []int{1, 32} {
				b.Run(fmt.Sprintf("%s/op=%d/batch=%d", name, op, batch), func(b *testing.B) {
					h := newBare(b, dev, 32)
					b.ReportAllocs()
					for i := 0; i < b.N; i += len(h.reqs) {
						h.run(op, batch, data)
					}
				})
			}
		}
	}
}
