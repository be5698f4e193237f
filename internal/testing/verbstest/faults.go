package verbstest

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Call names a call for FailCalls, by its C name.
type Call string

// The calls.
const (
	CallDevices            Call = "ibv_get_device_list"
	CallCreateCM           Call = "rdma_create_event_channel"
	CallListen             Call = "rdma_listen"
	CallCreateID           Call = "rdma_create_id"
	CallResolveAddr        Call = "rdma_resolve_addr"
	CallResolveRoute       Call = "rdma_resolve_route"
	CallConnect            Call = "rdma_connect"
	CallAccept             Call = "rdma_accept"
	CallReject             Call = "rdma_reject"
	CallDisconnect         Call = "rdma_disconnect"
	CallDestroyID          Call = "rdma_destroy_id"
	CallAllocPD            Call = "ibv_alloc_pd"
	CallDeallocPD          Call = "ibv_dealloc_pd"
	CallRegMR              Call = "ibv_reg_mr"
	CallDeregMR            Call = "ibv_dereg_mr"
	CallCreateCompChannel  Call = "ibv_create_comp_channel"
	CallDestroyCompChannel Call = "ibv_destroy_comp_channel"
	CallCreateCQ           Call = "ibv_create_cq"
	CallDestroyCQ          Call = "ibv_destroy_cq"
	CallCreateSRQ          Call = "ibv_create_srq"
	CallDestroySRQ         Call = "ibv_destroy_srq"
	CallCreateQP           Call = "rdma_create_qp"
	CallDestroyQP          Call = "ibv_destroy_qp"
	CallWatch              Call = "ibv_get_async_event"
)

type callFault struct {
	skip, times int
	err         error
}

// FailCalls makes calls of a machine fail with err (nil: ENOMEM): after skip calls, times calls;
// all from then on if times < 0, none if it is 0.
func (f *Fabric) FailCalls(machine string, call Call, skip, times int, err error) {
	f.lock()
	defer f.unlock()
	if err == nil {
		err = unix.ENOMEM
	}
	f.host(machine).failCalls[call] = &callFault{skip, times, err}
}

func (h *host) fault(c Call) error {
	cf := h.failCalls[c]
	switch {
	case cf == nil || cf.times == 0:
		return nil
	case cf.skip > 0:
		cf.skip--
		return nil
	}
	cf.times--
	return fmt.Errorf("%s: %w", c, cf.err)
}

// Ops is a set of send operations.
type Ops uint8

// The operations.
const (
	OpSend  Ops = 1 << iota // SEND, with and without invalidate
	OpWrite                 // RDMA WRITE
	OpRead                  // RDMA READ
)

// Fault affects send work requests as they reach the head of their queue. It has one of Fail, Drop
// and Hold.
type Fault struct {
	Host  string // the machine that posted; empty: any
	Ops   Ops    // 0: all
	Skip  int    // matching work requests that are not affected at first
	Times int    // number affected; 0 is one, < 0 all from then on

	// Fail completes the work request with this error, without effect.
	Fail verbs.WCStatus
	// Drop loses it on the network, with all its retries: WCRetryExcErr after Options.RetryTimeout.
	Drop bool
	// Hold keeps it, and later work requests, from being executed until Release. A READ is
	// executed, but its data is held.
	Hold bool
}

// Injection is an active Fault.
type Injection struct {
	f     *Fabric
	fault Fault
	left  int
	fired int
	held  []heldWR
	// releases end the holds of soft queue pairs.
	releases []func()
}

type heldWR struct {
	q   *qp
	seq uint64
}

// Inject activates a fault.
func (f *Fabric) Inject(fault Fault) *Injection {
	f.lock()
	defer f.unlock()
	i := &Injection{f: f, fault: fault, left: fault.Times}
	if fault.Times == 0 {
		i.left = 1
	}
	f.faults = append(f.faults, i)
	return i
}

// Fired returns the number of affected work requests.
func (i *Injection) Fired() int {
	i.f.lock()
	defer i.f.unlock()
	return i.fired
}

// Release ends the fault. Held work requests continue.
func (i *Injection) Release() {
	i.f.lock()
	i.f.faults = slices.DeleteFunc(i.f.faults, func(x *Injection) bool { return x == i })
	for _, h := range i.held {
		h.q.release(h.seq)
	}
	for _, fn := range i.releases {
		fn()
	}
	i.held, i.releases = nil, nil
	i.f.unlock()
	if i.f.soft != nil {
		i.f.settle()
	}
}

// hold is the effect of Hold faults on a work request.
type hold uint8

const (
	holdUnknown hold = iota // not checked yet
	holdNone
	holdAll  // must not be executed
	holdData // a READ that is executed without its data
)

// release ends the hold of a work request, which may have been flushed in the meantime.
func (q *qp) release(seq uint64) {
	if q.freed || q.state != stateRTS || seq < q.comp {
		return
	}
	q.sq[seq%uint64(len(q.sq))].hold = holdNone
	q.dev.f.schedule(q)
}

// match reports whether the fault affects the work request, and counts it.
func (i *Injection) match(h *host, opcode verbs.SendOpcode) bool {
	op := OpSend
	switch opcode {
	case verbs.WRRDMAWrite:
		op = OpWrite
	case verbs.WRRDMARead:
		op = OpRead
	}
	x := &i.fault
	if i.left == 0 || x.Host != "" && x.Host != h.name || x.Ops != 0 && x.Ops&op == 0 {
		return false
	}
	if x.Skip > 0 {
		x.Skip--
		return false
	}
	i.left--
	i.fired++
	return true
}

// checkFaults applies the first fault that matches the work request at exec, once. It reports
// whether the work request may be executed now.
func (q *qp) checkFaults(e *sendEntry) bool {
	if e.hold != holdUnknown {
		return e.hold != holdAll
	}
	e.hold = holdNone
	for _, i := range q.dev.f.faults {
		if !i.match(q.dev.host, e.wr.Opcode) {
			continue
		}
		switch {
		case i.fault.Fail != verbs.WCSuccess:
			q.fail(e, i.fault.Fail)
			return false
		case i.fault.Drop:
			e.hold = holdAll
			q.wait(stallFault, q.dev.f.opt.RetryTimeout, verbs.WCRetryExcErr)
			return false
		}
		i.held = append(i.held, heldWR{q, q.exec})
		if e.wr.Opcode == verbs.WRRDMARead {
			e.hold = holdData
			return true
		}
		e.hold = holdAll
		return false
	}
	return true
}

// Cut loses all messages between two machines until Restore: posted work fails after its retries,
// and connection management times out.
func (f *Fabric) Cut(a, b string) { f.cut(a, b, true) }

// Restore ends Cut.
func (f *Fabric) Restore(a, b string) { f.cut(a, b, false) }

func (f *Fabric) cut(a, b string, cut bool) {
	f.lock()
	defer f.unlock()
	ha, hb := f.host(a), f.host(b)
	if f.soft != nil {
		f.soft.cut(ha, hb, cut)
		return
	}
	f.cuts[[2]*host{ha, hb}], f.cuts[[2]*host{hb, ha}] = cut, cut
	for _, h := range []*host{ha, hb} {
		for _, d := range h.devices {
			for _, q := range d.qps {
				f.schedule(q)
			}
		}
	}
}

func (f *Fabric) isCut(a, b *host) bool { return len(f.cuts) > 0 && f.cuts[[2]*host{a, b}] }

// FailQP moves a queue pair to the error state, as a device does after a fault. It returns false if
// there is none with this number.
func (f *Fabric) FailQP(machine string, num uint32) bool {
	f.lock()
	defer f.unlock()
	for _, d := range f.host(machine).devices {
		for _, q := range d.qps {
			if q.num == num {
				q.toError()
				return true
			}
		}
	}
	for _, q := range f.host(machine).softQPs() {
		if q.Num() == num {
			q.fail()
			return true
		}
	}
	return false
}

// softQPs returns the queue pairs of a machine with the soft stack.
func (h *host) softQPs() []*softQP {
	if h.stack == nil || h.stack.dev == nil {
		return nil
	}
	return slices.Clone(h.stack.dev.qps)
}

// FailCQs makes every completion queue of a machine fail as if it had overrun.
func (f *Fabric) FailCQs(machine string) {
	f.lock()
	defer f.unlock()
	for _, d := range f.host(machine).devices {
		for _, c := range d.cqs {
			c.fail()
		}
	}
	if s := f.host(machine).stack; s != nil && s.dev != nil {
		for _, c := range s.dev.cqs {
			c.fail()
		}
	}
}

// RemoveDevice removes a device, as hot-unplug does: its queue pairs go to the error state, its IDs
// get DeviceRemoval, and calls on it fail, except calls that free objects.
func (f *Fabric) RemoveDevice(machine, name string) bool {
	f.lock()
	defer f.unlock()
	h := f.host(machine)
	for _, d := range h.devices {
		if d.opt.Attr.Name != name || d.removed {
			continue
		}
		d.removed = true
		for _, q := range d.qps {
			q.toError()
		}
		for _, q := range h.softQPs() {
			q.fail()
		}
		if h.stack != nil {
			h.stack.removed()
		}
		for _, id := range h.ids {
			if id.dev == d {
				id.post(verbs.Event{Type: verbs.EventDeviceRemoval})
			}
		}
		return true
	}
	return false
}

// ExpireCM ends all waits of connection management for answers: every running Options.CMTimeout and
// timewait is over.
func (f *Fabric) ExpireCM() {
	f.lock()
	defer f.unlock()
	var ids []*cmID
	for _, h := range f.hosts {
		ids = append(ids, h.ids...)
	}
	for _, id := range ids {
		id.expired()
	}
}

// Message is a message of the connection management protocol.
type Message uint8

// The messages.
const (
	MessageREQ Message = iota
	MessageREP
	MessageRTU
	MessageREJ
	MessageDREQ
	MessageDREP
)

type messageDrop struct {
	h *host
	m Message
}

// DropMessages loses the next connection management messages of this kind that a machine sends
// (times < 0: all), with all their retries.
func (f *Fabric) DropMessages(machine string, m Message, times int) {
	f.lock()
	defer f.unlock()
	if h := f.host(machine); f.soft != nil {
		f.soft.drop(h, m, times)
	} else {
		f.drops[messageDrop{h, m}] = times
	}
}

// reaches reports whether a message of one machine arrives at the other.
func (f *Fabric) reaches(from, to *host, m Message) bool {
	if f.isCut(from, to) {
		return false
	}
	drop := messageDrop{from, m}
	if f.drops[drop] == 0 {
		return true
	}
	f.drops[drop]--
	return false
}
