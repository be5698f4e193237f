package verbstest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft"
	softcm "github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/cm"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// With Options.Soft the machines have the soft stack, on a network in memory, and this file adds
// the attributes, counts and faults of the fake. The goroutine that posts or polls also runs the
// engines of all machines until nothing is on its way, so that work is done at once here, too.

// softNet is the network of a Fabric with Options.Soft.
type softNet struct {
	mem   *wiretest.Network
	steps sync.Mutex // one goroutine at a time runs the engines
	// stacks and steppers are guarded by the lock of the fabric and by steps.
	stacks   []*softStack
	steppers []verbs.CQ // of each engine, always empty: polling it makes a turn

	mu    sync.Mutex // taken with the network locked
	cuts  map[[2]netip.Addr]bool
	drops map[softDrop]*lost
}

// softDrop is a kind of message of the connection manager: its sender, and its attribute.
type softDrop struct {
	from netip.Addr
	attr uint16
}

// lost are the messages to lose. Their repetitions have the same transaction ID.
type lost struct {
	times int
	tids  map[uint64]bool
}

func newSoftNet() *softNet {
	n := &softNet{cuts: map[[2]netip.Addr]bool{}, drops: map[softDrop]*lost{}}
	n.mem = wiretest.New(wiretest.Options{Filter: n.arrives})
	return n
}

// arrives reports whether a packet arrives.
func (n *softNet) arrives(p *wire.Packet) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	from := p.Local.Addr()
	if n.cuts[[2]netip.Addr{from, p.Remote.Addr()}] {
		return false
	}
	const mad = packet.BTHSize + packet.DETHSize // a datagram's payload; the header is in 13.4.2
	h, ok := packet.ParseBTH(p.Data)
	if len(n.drops) == 0 || !ok || h.QPN != wire.CMQPN || len(p.Data) < mad+24 {
		return true
	}
	d := n.drops[softDrop{from, binary.BigEndian.Uint16(p.Data[mad+16:])}]
	if d == nil {
		return true
	}
	tid := binary.BigEndian.Uint64(p.Data[mad+8:])
	if !d.tids[tid] && d.times != 0 {
		d.times--
		d.tids[tid] = true
	}
	return !d.tids[tid]
}

// softAttrs are the attributes of the messages (InfiniBand specification 12.6, table 99 and next).
var softAttrs = map[Message]uint16{
	MessageREQ: 0x10, MessageREJ: 0x12, MessageREP: 0x13, MessageRTU: 0x14, MessageDREQ: 0x15,
	MessageDREP: 0x16,
}

func (n *softNet) drop(h *host, m Message, times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range h.devices[0].opt.Addrs {
		n.drops[softDrop{a, softAttrs[m]}] = &lost{times: times, tids: map[uint64]bool{}}
	}
}

func (n *softNet) cut(a, b *host, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range a.devices[0].opt.Addrs {
		for _, y := range b.devices[0].opt.Addrs {
			n.cuts[[2]netip.Addr{x, y}], n.cuts[[2]netip.Addr{y, x}] = cut, cut
		}
	}
}

// softStack is the soft stack of a machine: a verbs.Provider.
type softStack struct {
	h *host
	*soft.Provider
	dev *softDevice // nil before the first ID
	cms []*softCM   // open ones
}

// softTimes are times after which nobody gives up a peer because a busy machine has suspended the
// test: two seconds for connection requests, and four for packets.
var softTimes = softcm.Options{ResponseTimeout: 15, AckTimeout: 17}

const softEngines = 2

// softStack returns the stack of a machine. Locked.
func (h *host) softStack() *softStack {
	if h.stack == nil {
		n := h.f.soft
		h.stack = &softStack{h: h, Provider: soft.New(soft.Options{
			Network: n.mem.Host(h.name, h.devices[0].opt.Addrs...), Engines: softEngines,
			CM: softTimes,
		})}
		n.stacks = append(n.stacks, h.stack)
	}
	return h.stack
}

// settle runs the engines of all machines until no packet is on its way to them.
func (f *Fabric) settle() {
	n := f.soft
	n.steps.Lock()
	defer n.steps.Unlock()
	for range 1000 {
		for _, cq := range n.steppers {
			_, _ = cq.Poll(nil)
		}
		if d, ok := n.mem.Next(); !ok || d > 0 {
			return
		}
		runtime.Gosched() // it may be for a connection manager
	}
}

// Advance moves the clock of the soft stacks.
func (f *Fabric) Advance(d time.Duration) {
	if f.soft != nil {
		f.soft.mem.Advance(d)
	}
}

// close closes the stacks. All objects have been freed.
func (n *softNet) close() {
	for _, cq := range n.steppers {
		_ = cq.Destroy()
	}
	for _, s := range n.stacks {
		if err := s.Provider.Close(); err != nil {
			panic(fmt.Sprintf("verbstest: close the stack of %s: %v", s.h.name, err))
		}
	}
}

func (s *softStack) Devices() ([]verbs.DeviceAttr, error) {
	s.h.f.lock()
	defer s.h.f.unlock()
	if err := s.h.fault(CallDevices); err != nil {
		return nil, err
	}
	d := s.h.present()
	if d == nil {
		return nil, nil
	}
	list, err := s.Provider.Devices()
	for i := range list {
		list[i] = d.softAttr(list[i])
	}
	return list, err
}

// softAttr returns the attributes of a device, within the limits of the soft one.
func (d *device) softAttr(real verbs.DeviceAttr) verbs.DeviceAttr {
	a := d.opt.Attr
	a.MaxSGE, a.MaxSGERD = min(a.MaxSGE, real.MaxSGE), min(a.MaxSGERD, real.MaxSGERD)
	a.NumCompVectors, a.WritesFirst, a.Unlocked = real.NumCompVectors, real.WritesFirst,
		real.Unlocked
	return a
}

func (s *softStack) NewCM() (verbs.CM, error) {
	s.h.f.lock()
	defer s.h.f.unlock()
	if err := s.h.fault(CallCreateCM); err != nil {
		return nil, err
	}
	inner, err := s.Provider.NewCM()
	if err != nil {
		return nil, err
	}
	c := &softCM{CM: inner, s: s, object: newObject(&s.h.live.CMs)}
	s.cms = append(s.cms, c)
	return c, nil
}

// present returns the device of the machine, nil if it was removed.
func (h *host) present() *device {
	for _, d := range h.devices {
		if !d.removed {
			return d
		}
	}
	return nil
}

// device returns the device of the machine, which wraps inner. Locked.
func (s *softStack) device(inner verbs.Device) *softDevice {
	known, d := s.dev != nil, s.h.present()
	if d == nil {
		d = s.h.devices[len(s.h.devices)-1] // an ID that is told so
	}
	if !known || s.dev.d != d {
		s.dev = &softDevice{Device: inner, h: s.h, d: d, attr: d.softAttr(inner.Attr())}
	}
	if n := s.h.f.soft; !known {
		n.steps.Lock()
		defer n.steps.Unlock()
		for v := range softEngines {
			cq, err := inner.CreateCQ(1, nil, v)
			if err != nil {
				panic("verbstest: " + err.Error())
			}
			n.steppers = append(n.steppers, cq)
		}
	}
	return s.dev
}

type softCM struct {
	verbs.CM
	s *softStack
	object
	ids   []*softID
	extra []verbs.Event // before those of CM
}

func (c *softCM) Listen(addr netip.AddrPort, backlog int, tos uint8) (verbs.ID, error) {
	id, err := c.make(CallListen, func() (verbs.ID, error) {
		if c.s.h.present() == nil {
			return nil, fmt.Errorf("%s: %w", CallListen, verbs.ErrNoDevice)
		}
		return c.CM.Listen(addr, backlog, tos)
	})
	if err == nil {
		id.(*softID).tos = tos
	}
	return id, err
}

func (c *softCM) NewID() (verbs.ID, error) { return c.make(CallCreateID, c.CM.NewID) }

func (c *softCM) make(call Call, fn func() (verbs.ID, error)) (verbs.ID, error) {
	f := c.s.h.f
	f.lock()
	defer f.unlock()
	if err := c.s.h.fault(call); err != nil {
		return nil, err
	}
	inner, err := fn()
	if err != nil {
		return nil, err
	}
	return c.wrap(inner), nil
}

// wrap returns the ID that has inner. Locked.
func (c *softCM) wrap(inner verbs.ID) *softID {
	if id, ok := inner.Context().(*softID); ok {
		return id
	}
	id := &softID{ID: inner, cm: c, object: newObject(&c.s.h.live.IDs)}
	inner.SetContext(id)
	c.ids = append(c.ids, id)
	return id
}

// waker is the context of an ID that makes Next return.
type waker struct{}

func (c *softCM) Next() (verbs.Event, error) {
	for {
		ev, ok := c.takeExtra()
		if ok {
			return ev, nil
		}
		ev, err := c.CM.Next()
		if err != nil {
			return ev, err
		}
		if _, woken := ev.ID.Context().(waker); woken {
			_ = ev.ID.Destroy()
			continue
		}
		c.s.h.f.lock()
		ev.ID = c.wrap(ev.ID)
		if ev.Listener != nil {
			ev.Listener = c.wrap(ev.Listener)
		}
		c.s.h.f.unlock()
		return ev, nil
	}
}

func (c *softCM) takeExtra() (ev verbs.Event, ok bool) {
	c.s.h.f.lock()
	defer c.s.h.f.unlock()
	for len(c.extra) > 0 && !ok {
		ev, ok = c.extra[0], !c.extra[0].ID.(*softID).freed
		c.extra = c.extra[1:]
	}
	return ev, ok
}

// post adds an event. Locked.
func (c *softCM) post(ev verbs.Event) {
	c.extra = append(c.extra, ev)
	if id, err := c.CM.NewID(); err == nil {
		id.SetContext(waker{})
		_ = id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(netip.IPv4Unspecified(), 1), 0)
	}
}

func (c *softCM) Close() error {
	err := c.CM.Close()
	c.s.h.f.lock()
	defer c.s.h.f.unlock()
	if err == nil && !c.freed {
		c.freed = true
		*c.count--
		c.s.cms = slices.DeleteFunc(c.s.cms, func(x *softCM) bool { return x == c })
	}
	return err
}

type softID struct {
	verbs.ID
	cm *softCM
	object
	mu      sync.Mutex
	context any
	qp      *softQP
	dev     *softDevice
	tos     uint8
}

// TOS is the type of service that Listen was given.
func (id *softID) TOS() uint8 { return id.tos }

func (id *softID) SetContext(v any) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.context = v
}

func (id *softID) Context() any {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.context
}

func (id *softID) Device() verbs.Device {
	inner := id.ID.Device()
	if inner == nil {
		return nil
	}
	f := id.cm.s.h.f
	f.lock()
	defer f.unlock()
	if id.dev == nil {
		id.dev = id.cm.s.device(inner)
	}
	return id.dev
}

// call makes a call of the ID unless it shall fail, and runs the engines.
func (id *softID) call(c Call, fn func() error) error {
	f := id.cm.s.h.f
	f.lock()
	err := id.cm.s.h.fault(c)
	f.unlock()
	if err == nil {
		err = fn()
	}
	f.settle()
	return err
}

func (id *softID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	return id.call(CallResolveAddr, func() error { return id.ID.ResolveAddr(src, dst, timeout) })
}

func (id *softID) ResolveRoute(timeout time.Duration) error {
	return id.call(CallResolveRoute, func() error { return id.ID.ResolveRoute(timeout) })
}

func (id *softID) Connect(p verbs.ConnParam) error {
	return id.call(CallConnect, func() error { return id.ID.Connect(p) })
}

func (id *softID) Accept(p verbs.ConnParam) error {
	return id.call(CallAccept, func() error { return id.ID.Accept(p) })
}

func (id *softID) Reject(private []byte) error {
	return id.call(CallReject, func() error { return id.ID.Reject(private) })
}

func (id *softID) Disconnect() error {
	return id.call(CallDisconnect, func() error {
		id.mu.Lock()
		q := id.qp
		id.mu.Unlock()
		err := id.ID.Disconnect()
		if q != nil {
			q.ended()
		}
		return err
	})
}

func (id *softID) Destroy() error {
	return id.call(CallDestroyID, func() error {
		err := id.ID.Destroy()
		f := id.cm.s.h.f
		f.lock()
		defer f.unlock()
		if err == nil && !id.freed {
			id.freed = true
			*id.count--
			id.cm.ids = slices.DeleteFunc(id.cm.ids, func(x *softID) bool { return x == id })
		}
		return err
	})
}

func (id *softID) CreateQP(pd verbs.PD, init verbs.QPInit) (verbs.QP, error) {
	s := id.cm.s
	f := s.h.f
	f.lock()
	defer f.unlock()
	d := pd.(*softPD).dev
	if err := d.call(CallCreateQP); err != nil {
		return nil, err
	}
	if len(d.qps) >= d.attr.MaxQP {
		return nil, fmt.Errorf("%s: %w", CallCreateQP, unix.ENOMEM)
	}
	scq, rcq := init.SendCQ.(*softCQ), init.RecvCQ.(*softCQ)
	init.SendCQ, init.RecvCQ = scq.CQ, rcq.CQ
	if init.SRQ != nil {
		init.SRQ = init.SRQ.(*softSRQ).SRQ
	}
	inner, err := id.ID.CreateQP(pd.(*softPD).PD, init)
	if err != nil {
		return nil, err
	}
	q := &softQP{QP: inner, scq: scq, object: newObject(&s.h.live.QPs)}
	id.mu.Lock()
	id.qp = q
	id.mu.Unlock()
	d.qps = append(d.qps, q)
	scq.mu.Lock()
	scq.qps = append(scq.qps, q)
	scq.mu.Unlock()
	return q, nil
}

// removed tells the IDs with the device that it is gone. Locked.
func (s *softStack) removed() {
	for _, c := range s.cms {
		for _, id := range c.ids {
			if id.ID.Device() != nil {
				c.post(verbs.Event{Type: verbs.EventDeviceRemoval, ID: id})
			}
		}
	}
}

type softDevice struct {
	verbs.Device
	h    *host
	d    *device // has the watchers of Fabric.Raise
	attr verbs.DeviceAttr
	cqs  []*softCQ
	srqs []*softSRQ
	qps  []*softQP
}

func (d *softDevice) Attr() verbs.DeviceAttr { return d.attr }

// call returns the error of a call on the device, if one is due. Calls that free something do not
// use it.
func (d *softDevice) call(c Call) error { return d.d.call(c) }

// locked calls fn with the fabric locked, unless the call shall fail.
func (d *softDevice) locked(c Call, fn func() error) error {
	d.h.f.lock()
	defer d.h.f.unlock()
	if err := d.call(c); err != nil {
		return err
	}
	return fn()
}

func (d *softDevice) AllocPD() (pd verbs.PD, err error) {
	err = d.locked(CallAllocPD, func() error {
		inner, err := d.Device.AllocPD()
		pd = &softPD{PD: inner, dev: d, object: newObject(&d.h.live.PDs)}
		return err
	})
	return pd, err
}

func (d *softDevice) CreateCompChannel() (ch verbs.CompChannel, err error) {
	err = d.locked(CallCreateCompChannel, func() error {
		inner, err := d.Device.CreateCompChannel()
		if err != nil {
			return err
		}
		ch, err = newSoftChannel(d, inner)
		return err
	})
	return ch, err
}

func (d *softDevice) CreateCQ(entries int, ch verbs.CompChannel, vector int) (cq verbs.CQ,
	err error,
) {
	err = d.locked(CallCreateCQ, func() error {
		if len(d.cqs) >= d.attr.MaxCQ {
			return fmt.Errorf("%s: %w", CallCreateCQ, unix.ENOMEM)
		}
		if entries > d.attr.MaxCQE {
			return fmt.Errorf("%s: %d entries: %w", CallCreateCQ, entries, unix.EINVAL)
		}
		own, _ := ch.(*softChannel)
		if own != nil {
			ch = own.CompChannel
		}
		inner, err := d.Device.CreateCQ(entries, ch, vector)
		if err != nil {
			return err
		}
		c := &softCQ{CQ: inner, dev: d, ch: own, object: newObject(&d.h.live.CQs)}
		d.cqs = append(d.cqs, c)
		cq = c
		return nil
	})
	return cq, err
}

func (d *softDevice) Watch(fn func(verbs.AsyncEvent)) (func(), error) {
	var mu sync.Mutex // one event after the other
	raised, err := d.d.Watch(func(ev verbs.AsyncEvent) {
		mu.Lock()
		defer mu.Unlock()
		fn(ev)
	})
	if err != nil {
		return nil, err
	}
	stop, err := d.Device.Watch(func(ev verbs.AsyncEvent) {
		d.own(&ev)
		mu.Lock()
		defer mu.Unlock()
		fn(ev)
	})
	if err != nil {
		raised()
		return nil, err
	}
	return func() { raised(); stop() }, nil
}

// own replaces the objects of an event with their wrappers.
func (d *softDevice) own(ev *verbs.AsyncEvent) {
	d.h.f.lock()
	defer d.h.f.unlock()
	for _, c := range d.cqs {
		if ev.CQ == c.CQ {
			ev.CQ = c
		}
	}
	for _, s := range d.srqs {
		if ev.SRQ == s.SRQ {
			ev.SRQ = s
		}
	}
}

type softPD struct {
	verbs.PD
	dev *softDevice
	object
}

// release frees an object that wraps another; fn, a method of that, frees it.
func (d *softDevice) release(o *object, c Call, fn func() error) error {
	d.h.f.lock()
	defer d.h.f.unlock()
	if o.freed {
		panic("verbstest: a second " + string(c))
	}
	if err := d.h.fault(c); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	o.freed = true
	*o.count--
	return nil
}

func (p *softPD) Dealloc() error { return p.dev.release(&p.object, CallDeallocPD, p.PD.Dealloc) }

func (p *softPD) RegMR(b []byte, access verbs.Access) (m verbs.MR, err error) {
	err = p.dev.locked(CallRegMR, func() error {
		inner, err := p.PD.RegMR(b, access)
		if err != nil {
			return err
		}
		w := &softMR{MR: inner, dev: p.dev, object: newObject(&p.dev.h.live.MRs)}
		w.size = uint64(len(b))
		if access&(verbs.AccessRemoteRead|verbs.AccessRemoteWrite) != 0 {
			w.remote = 1
		}
		p.dev.h.live.MRBytes += w.size
		p.dev.h.live.RemoteMRs += w.remote
		m = w
		return nil
	})
	return m, err
}

func (p *softPD) CreateSRQ(init verbs.SRQInit) (s verbs.SRQ, err error) {
	err = p.dev.locked(CallCreateSRQ, func() error {
		if len(p.dev.srqs) >= p.dev.attr.MaxSRQ {
			return fmt.Errorf("%s: %w", CallCreateSRQ, unix.ENOMEM)
		}
		inner, err := p.PD.CreateSRQ(init)
		if err != nil {
			return err
		}
		w := &softSRQ{SRQ: inner, dev: p.dev, object: newObject(&p.dev.h.live.SRQs)}
		p.dev.srqs = append(p.dev.srqs, w)
		s = w
		return nil
	})
	return s, err
}

type softMR struct {
	verbs.MR
	dev *softDevice
	object
	size   uint64
	remote int
}

func (m *softMR) Dereg() error {
	return m.dev.release(&m.object, CallDeregMR, func() error {
		if err := m.MR.Dereg(); err != nil {
			return err
		}
		m.dev.h.live.MRBytes -= m.size
		m.dev.h.live.RemoteMRs -= m.remote
		return nil
	})
}

type softSRQ struct {
	verbs.SRQ
	dev *softDevice
	object
}

func (s *softSRQ) Destroy() error {
	return s.dev.release(&s.object, CallDestroySRQ, func() error {
		err := s.SRQ.Destroy()
		if err == nil {
			s.dev.srqs = slices.DeleteFunc(s.dev.srqs, func(x *softSRQ) bool { return x == s })
		}
		return err
	})
}
