package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/ids"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/roce"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// A world is a memory network with a manual clock and the machines on it. The test's goroutine runs
// everything.
type world struct {
	t        testing.TB
	mem      *wiretest.Network
	machines []*machine
	conns    []wire.Conn
	// sent are the messages so far. lose is called with each; true loses it.
	sent []sent
	lose func(n int, s *sent) bool
}

type sent struct {
	from, to netip.Addr
	message
}

func newWorld(t testing.TB, opts wiretest.Options) *world {
	w := &world{t: t}
	opts.Manual = true
	opts.Filter = func(p *wire.Packet) bool {
		s := sent{from: p.Local.Addr(), to: p.Remote.Addr()}
		if len(p.Data) != packetSize || !s.decode(p.Data[packetSize-madSize:]) {
			return true
		}
		w.sent = append(w.sent, s)
		return w.lose == nil || !w.lose(len(w.sent)-1, &s)
	}
	w.mem = wiretest.New(opts)
	t.Cleanup(w.close)
	return w
}

// close frees the descriptors of the machines.
func (w *world) close() {
	for _, c := range w.conns {
		testutil.Must(w.t, c.Close())
	}
	w.conns = nil
}

// machine is a host with a Manager and one program.
type machine struct {
	w    *world
	addr netip.Addr
	net  wire.Network
	m    *Manager
	cm   verbs.CM
	dev  *device
	// log are the events so far, in order.
	log []verbs.Event
	// on handles an event.
	on func(verbs.Event)
}

// host adds a machine. Its addresses are 192.0.2.n and 2001:db8::n.
func (w *world) host(n byte, opt Options) *machine {
	h := &machine{w: w, addr: netip.AddrFrom4([4]byte{192, 0, 2, n})}
	h.net = w.mem.Host(fmt.Sprintf("host%d", n), h.addr,
		netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", n)))
	conns := testutil.Value(h.net.Open(1))(w.t)
	w.conns = append(w.conns, conns...)
	h.dev = &device{w: w, qpn: uint32(n)<<18 + 2}
	h.m = newManager(h.net, conns[1], h.dev, opt)
	h.cm = testutil.Value(h.m.NewCM())(w.t)
	w.machines = append(w.machines, h)
	return h
}

// newWorldOfTwo makes a world with machines 1 and 2.
func newWorldOfTwo(t testing.TB, opts wiretest.Options) (w *world, a, p *machine) {
	w = newWorld(t, opts)
	return w, w.host(1, Options{}), w.host(2, Options{})
}

// settle does everything that needs no time.
func (w *world) settle() {
	for busy := true; busy; {
		busy = false
		for _, c := range w.conns {
			if !slices.ContainsFunc(w.machines, func(h *machine) bool { return h.m.conn == c }) {
				testutil.Value(c.Recv())(w.t) // a damaged packet may go to the engine
			}
		}
		for _, h := range w.machines {
			for h.m.step() {
				busy = true
			}
			for h.pending() {
				busy = true
				ev := testutil.Value(h.cm.Next())(w.t)
				h.log = append(h.log, ev)
				if h.on != nil {
					h.on(ev)
				}
			}
		}
		if d, ok := w.mem.Next(); ok && d == 0 {
			busy = true
		}
	}
}

func (h *machine) pending() bool {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	_, events := h.cm.(*channel).Count()
	return events > 0
}

// run lets time pass.
func (w *world) run(most time.Duration) {
	w.settle()
	for {
		d, ok := w.mem.Next()
		if !ok || d > most {
			w.mem.Advance(most)
			return
		}
		most -= d
		w.mem.Advance(d)
		w.settle()
	}
}

// ever is longer than any timer runs.
const ever = time.Hour

// types are the types of the events so far.
func (h *machine) types() (list []verbs.EventType) {
	for _, ev := range h.log {
		list = append(list, ev.Type)
	}
	return list
}

func (h *machine) count(typ verbs.EventType) (n int) {
	for _, ev := range h.log {
		if ev.Type == typ {
			n++
		}
	}
	return n
}

// empty checks that nothing is left of any connection.
func (h *machine) empty(what string) {
	h.w.t.Helper()
	m := h.m
	left := []int{
		len(m.conns), len(m.remotes), len(m.queues), len(m.hosts), m.timers.Len(), len(m.noted),
		len(m.strangers),
	}
	if slices.Max(left) > 0 || m.total != (counts{}) {
		h.w.t.Fatalf("%s: host %v is left with %v (conns, remotes, queues, hosts, timers, notes, "+
			"networks), accounts %v", what, h.addr, left, m.total)
	}
	n, _ := h.cm.(*channel).Count()
	testutil.MustEqual(h.w.t, n, 0, "%s: IDs of host %v", what, h.addr)
}

func (h *machine) listen(port uint16, backlog int) verbs.ID {
	h.w.t.Helper()
	return testutil.Value(h.cm.Listen(netip.AddrPortFrom(h.addr, port), backlog, 0))(h.w.t)
}

// route makes an ID ready to connect to a port of another machine.
func (h *machine) route(to *machine, port uint16) verbs.ID {
	h.w.t.Helper()
	id := testutil.Value(h.cm.NewID())(h.w.t)
	testutil.Must(h.w.t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(to.addr, port), 0))
	testutil.Must(h.w.t, id.ResolveRoute(0))
	for range 2 {
		testutil.Value(h.cm.Next())(h.w.t) // AddrResolved, RouteResolved
	}
	h.queue(id)
	return id
}

func (h *machine) queue(id verbs.ID) *queue {
	h.w.t.Helper()
	q := testutil.Value(id.CreateQP(nil, verbs.QPInit{}))(h.w.t)
	return q.(*ids.QP[QP]).QP.(*queue)
}

// end frees an ID with its queue pair.
func (h *machine) end(id verbs.ID) {
	h.w.t.Helper()
	if q := id.(*ID).QP; q != nil {
		testutil.Must(h.w.t, q.Destroy())
	}
	testutil.Must(h.w.t, id.Destroy())
}

// serving makes a listener, and serves it.
func (h *machine) serving() verbs.ID {
	h.w.t.Helper()
	l := h.listen(port, 0)
	h.serve()
	return l
}

// ended waits for the end of all messages, and checks that nothing is left but the listener, which
// it closes.
func (h *machine) ended(l verbs.ID, what string) {
	h.w.t.Helper()
	h.w.run(ever)
	testutil.Must(h.w.t, l.Destroy())
	h.empty(what)
}

// serve makes the machine accept every request and disconnect when the peer does.
func (h *machine) serve() {
	h.on = func(ev verbs.Event) {
		switch ev.Type {
		case verbs.EventConnectRequest:
			if withdrawn(ev.ID) {
				return
			}
			h.queue(ev.ID)
			testutil.Must(h.w.t, ev.ID.Accept(verbs.ConnParam{RNRRetryCount: 7}))
		case verbs.EventDisconnected:
			testutil.Must(h.w.t, ev.ID.Disconnect())
			h.end(ev.ID)
		case verbs.EventUnreachable, verbs.EventRejected:
			h.end(ev.ID)
		}
	}
}

// withdrawn reports whether the request of an ID is gone. A Rejected follows.
func withdrawn(id verbs.ID) bool {
	return errors.Is(id.Accept(verbs.ConnParam{}), unix.EINVAL) && id.(*ID).conn == nil
}

// device is a Device with queue pairs that only remember.
type device struct {
	verbs.Device
	w      *world
	qpn    uint32
	queues []*queue
	// handed are the packets to other queue pairs.
	handed  int
	onNewQP func() // runs once, in NewQP
}

func (d *device) HandOver(*wire.Packet) { d.handed++ }

func (d *device) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{Name: "soft0", MaxQPRdAtom: 16, MaxQPInitRdAtom: 16}
}

func (d *device) NewQP(verbs.PD, verbs.QPInit) (QP, error) {
	if fn := d.onNewQP; fn != nil {
		d.onNewQP = nil
		fn()
	}
	d.qpn++
	q := &queue{dev: d, num: d.qpn}
	d.queues = append(d.queues, q)
	return q, nil
}

type queue struct {
	verbs.QP
	dev              *device
	num              uint32
	peer             *roce.Peer
	failed, gone     bool
	onFirst, onFatal func()
}

func (q *queue) Num() uint32    { return q.num }
func (q *queue) PSN() uint32    { return q.num * 3 & packet.PSNMask }
func (q *queue) ToError() error { q.failed = true; return nil }
func (q *queue) Destroy() error { q.gone = true; return nil }

func (q *queue) Connect(p roce.Peer) error {
	if q.peer != nil || q.failed || q.gone {
		return unix.EINVAL
	}
	q.peer, q.onFirst, q.onFatal = &p, p.First, p.Fatal
	return nil
}

// other returns the queue pair that this one is connected to, if that is connected to this one.
func (q *queue) other() *queue {
	if q.peer == nil {
		return nil
	}
	for _, h := range q.dev.w.machines {
		for _, o := range h.dev.queues {
			if o.num == q.peer.QPN && o.peer != nil && o.peer.QPN == q.num &&
				o.peer.PSN == q.PSN() && q.peer.PSN == o.PSN() {
				return o
			}
		}
	}
	return nil
}

// packet sends the first packet of the connection.
func (q *queue) packet() {
	if o := q.other(); o != nil && !o.failed && !o.gone && o.onFirst != nil {
		o.onFirst()
		o.onFirst = nil
	}
}

// errno returns the errno of an event.
func errno(ev verbs.Event) error {
	if ev.Status >= 0 {
		return errors.New("no errno")
	}
	return unix.Errno(-ev.Status)
}
