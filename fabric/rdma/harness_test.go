package rdma

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// harness is a target with one group on a real reactor and a fake fabric.
type harness struct {
	t       testing.TB
	f       *verbstest.Fabric
	tr      *Transport
	g       *group
	r       *reactor.Reactor
	loop    *aheadLoop
	h       *fabrictest.Disk
	l       fabric.Listener
	arena   *mem.Arena
	log     *testutil.Log
	cancel  context.CancelFunc
	stopped chan struct{}
	host    *testHost
	taken   []mem.Segment
	closed  bool
	stuck   bool
}

type harnessOptions struct {
	fabric verbstest.Options
	cfg    Config
	arena  int
	setup  func(*verbstest.Fabric)
	wrap   func(verbs.Provider) verbs.Provider
	stuck  bool // queue pairs will be left; see freeStuck
}

// joined makes a harness and a queue that is established.
func joined(t *testing.T, o harnessOptions, p hostParam) (*harness, *hostQueue) {
	t.Helper()
	b := newHarness(t, o)
	return b, b.host.connect(b.addr(), p)
}

func newHarness(t *testing.T, o harnessOptions) *harness {
	t.Helper()
	b := &harness{
		t: t, f: newFabric(o.fabric), log: new(testutil.Log),
		stopped: make(chan struct{}), stuck: o.stuck,
	}
	if o.setup != nil {
		o.setup(b.f)
	}
	o.cfg.Provider = b.f.Provider("target")
	if o.wrap != nil {
		o.cfg.Provider = o.wrap(o.cfg.Provider)
	}
	if o.cfg.Log == nil {
		o.cfg.Log = b.log.Logger()
	}
	if o.arena == 0 {
		o.arena = 4 << 20
	}
	o.cfg.SRQSize = cmp.Or(o.cfg.SRQSize, testSRQSize)
	// No test reaches these unless it calls later.
	o.cfg.ConnectTimeout = cmp.Or(o.cfg.ConnectTimeout, time.Hour)
	o.cfg.LingerTimeout = cmp.Or(o.cfg.LingerTimeout, time.Hour)
	var err error
	must := func(err error) {
		t.Helper()
		testutil.Must(t, err)
	}
	b.arena, err = mem.NewArena("test arena", o.arena)
	must(err)
	b.r, err = reactor.New(reactor.Config{CPU: -1})
	must(err)
	b.h = newHandler(t)
	b.tr = New(o.cfg)
	b.loop = &aheadLoop{Reactor: b.r, pending: make(map[*aheadTimer]struct{})}
	g, err := b.tr.NewGroup(fabric.GroupConfig{
		Loop: b.loop, Handler: b.h,
		Memory: mem.NewPool(b.arena, 0),
	})
	must(err)
	b.g = g.(*group)
	b.r.Attach(b.g)
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() {
		defer close(b.stopped)
		testutil.Equal(t, b.r.Run(ctx), nil, "reactor")
	}()
	t.Cleanup(func() {
		if b.close(); t.Failed() {
			t.Logf("the log:\n%s", b.log)
		}
	})
	b.l, err = b.tr.Listen(fabric.Addr{
		Transport: nvme.TransportRDMA,
		AddrPort:  netip.AddrPortFrom(b.f.Addr("target"), 0),
	}, 7, b.adopt)
	must(err)
	b.host = newHost(t, b.f.Provider("host"))
	return b
}

func (b *harness) adopt(c fabric.Conn) {
	if err := b.g.Adopt(c); err != nil {
		fmt.Fprintf(b.log, "adopt: %v\n", err)
	}
}

func (b *harness) addr() netip.AddrPort { return b.l.Addr().AddrPort }

// close ends the target in order and checks for leaks.
func (b *harness) close() {
	if b.closed {
		return
	}
	b.closed = true
	check := func(what string, err error) {
		if err != nil {
			b.t.Errorf("close %s: %v", what, err)
		}
	}
	if b.l != nil { // none if it could not listen
		check("listener", b.l.Close())
	}
	done := make(chan struct{})
	b.r.Post(func() { b.g.Shutdown(func() { close(done) }) })
	testutil.Receive(b.t, "the shutdown", done)
	b.cancel()
	<-b.stopped
	check("group", b.g.Close())
	check("transport", b.tr.Close())
	check("reactor", b.r.Close())
	testutil.Equal(b.t, b.tr.Usage().Connections, 0, "connections are counted")
	check("arena", b.arena.Close())
	check("store", b.h.Region.Unmap())
	if live := b.f.Live("target"); live != (verbstest.Counts{}) && !b.stuck {
		b.t.Errorf("leaked: %+v\n%s", live, b.log)
	}
	testutil.Equal(b.t, b.h.Busy(), 0, "requests are not idle")
	if o, c := b.h.Opened.Load(), b.h.Closed.Load(); o != c {
		b.t.Errorf("%d sessions were opened, %d closed", o, c)
	}
	b.f.Close()
}

func (b *harness) on(fn func()) {
	b.t.Helper()
	done := make(chan struct{})
	b.r.Post(func() { fn(); close(done) })
	testutil.Receive(b.t, "a posted function", done)
}

// idle waits until the group has no queue and all data memory is back.
func (b *harness) idle() {
	b.t.Helper()
	testutil.Until(b.t, "no queues, no connections, all memory free", func() bool {
		n, free := 0, 0
		b.on(func() { n, free = b.g.queues.len(), b.arena.Available() })
		return n == 0 && free == len(b.arena.Region().Bytes()) && b.tr.Usage().Connections == 0
	})
}

// The commands of the handler. CDW12 is the length of the data, CDW10 its place.
const (
	opNothing nvme.Opcode = 0x00
	opWrite   nvme.Opcode = 0x01
	opRead    nvme.Opcode = 0x02
	opRefused nvme.Opcode = 0x11
	opLeave   nvme.Opcode = 0x30 // completes, then Disconnect
	opConnect nvme.Opcode = 0x31 // SetDepth
	// Those above, for other namespaces.
	opReadFail, opHold, opHoldWrite, opHoldRead, opZeroCopyRead, opZeroCopyWrite nvme.Opcode = 0xC0,
		0xC1, 0xC2, 0xC3, 0xC4, 0xC5
)

// special are opcodes of tests, with the opcode and the namespace that the handler sees.
var special = map[nvme.Opcode]struct {
	op   nvme.Opcode
	nsid uint32
}{
	opReadFail: {opRead, fabrictest.FailNSID}, opHold: {opNothing, fabrictest.HoldNSID},
	opHoldWrite: {opWrite, fabrictest.HoldNSID}, opHoldRead: {opRead, fabrictest.HoldNSID},
	opZeroCopyRead:  {opRead, fabrictest.ZeroCopyNSID},
	opZeroCopyWrite: {opWrite, fabrictest.ZeroCopyNSID},
}

// newHandler returns a controller with some memory.
func newHandler(t testing.TB) *fabrictest.Disk {
	h := fabrictest.NewDisk(t)
	h.Bytes, h.Hold = true, true
	h.Others = map[nvme.Opcode]func(*fabric.Request){
		opLeave: func(r *fabric.Request) {
			h.Complete(r, nvme.Success, 0)
			r.Queue.Disconnect(fmt.Errorf("asked to"))
		},
		opConnect: func(r *fabric.Request) {
			claim := fabric.Claim{
				Host: fmt.Sprintf("%p", r.Queue), Proven: !h.Unproven.Load(), Admin: true,
			}
			if host := r.SQE.CDW(11); host != 0 { // one of many queues
				claim.Host, claim.Admin = fmt.Sprint(host), false
			}
			st := nvme.Success
			if r.Queue.SetDepth(int(r.SQE.CDW(10)), fabric.Allowed, claim) != nil {
				st = nvme.ConnectInvalidParameters
			}
			h.Complete(r, st, 0)
		},
	}
	return h
}

// writesTo notes the regions to which the data of writes comes. The result reports whether it came
// to the arena, and whether to a single region.
func (b *harness) writesTo() (look func() (arena, single bool)) {
	regions := map[mem.RegionID]bool{}
	b.on(func() {
		b.h.OnExecute = func(reqs []*fabric.Request) {
			for _, r := range reqs {
				for _, s := range r.Segs {
					if r.SQE.Opcode() == opWrite {
						regions[s.Region] = true
					}
				}
			}
		}
	})
	return func() (arena, single bool) {
		b.on(func() { arena, single = regions[b.arena.Region().ID()], len(regions) == 1 })
		return arena, single
	}
}

// letGo completes the requests that the handler holds.
func (b *harness) letGo() { b.on(b.h.Release) }

// fragment allocates every other page of the arena; defragment frees them.
func (b *harness) fragment() {
	var all []mem.Segment
	for {
		segs, ok := b.arena.Alloc(nil, mem.BlockMin)
		if !ok {
			break
		}
		all = append(all, segs...)
	}
	for i, s := range all {
		if i%2 == 0 {
			b.arena.Free([]mem.Segment{s})
		} else {
			b.taken = append(b.taken, s)
		}
	}
}

func (b *harness) defragment() {
	b.arena.Free(b.taken)
	b.taken = nil
}

func netipWithPort(a netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port)
}

// first returns the oldest queue of the group.
func (g *group) first() *queue {
	for q := range g.queues.all() {
		return q
	}
	return nil
}
