package verbstest

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Call names a call that FailCalls can make fail, by its C name.
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
	CallCreateCompChannel  Call = "ibv_create_comp_channel"
	CallDestroyCompChannel Call = "ibv_destroy_comp_channel"
	CallCreateCQ           Call = "ibv_create_cq"
	CallDestroyCQ          Call = "ibv_destroy_cq"
	CallCreateSRQ          Call = "ibv_create_srq"
	CallDestroySRQ         Call = "ibv_destroy_srq"
	CallCreateQP           Call = "rdma_create_qp"
	CallWatch              Call = "ibv_get_async_event"
)

type callFault struct {
	skip, times int
	err         error
}

// FailCalls lets skip calls of a machine pass and the next times ones fail with err; times < 0: all
// from then on, 0: none any more. A nil err is ENOMEM.
func (f *Fabric) FailCalls(machine string, call Call, skip, times int, err error) {
	f.lock()
	defer f.unlock()
	if err == nil {
		err = unix.ENOMEM
	}
	f.host(machine).failCalls[call] = &callFault{skip, times, err}
}

// callError is what a failed call returns.
type callError struct {
	call Call
	err  error
}

func (e *callError) Error() string { return string(e.call) + ": " + e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

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
	return &callError{c, cf.err}
}

// Ops is a set of send operations.
type Ops uint8

// The operations.
const (
	OpSend  Ops = 1 << iota // SEND, with and without invalidate
	OpWrite                 // RDMA WRITE
	OpRead                  // RDMA READ
)

// Fault is something that happens to send work requests as they reach the head of their queue. One
// of Fail, Drop, Hold and Delay is given.
type Fault struct {
	Host  string // whose work requests; empty: everybody's
	Ops   Ops    // 0: all
	Skip  int    // so many matching ones go by first
	Times int    // so many are hit; 0 is one, < 0 all from then on

	// Fail completes the work request with this error, without effect.
	Fail verbs.WCStatus
	// Drop loses it on the way, with all its retries: WCRetryExcErr after Options.RetryTimeout.
	Drop bool
	// Hold keeps it from being executed until Release, and what is behind it. A READ is executed,
	// but its data is held.
	Hold bool
	// Delay is a Hold that ends by itself.
	Delay time.Duration
}

// Injection is a Fault in force.
type Injection struct {
	f     *Fabric
	fault Fault
	left  int
	fired int
	held  []heldWR
}

type heldWR struct {
	q   *qp
	seq uint64
}

// Inject puts a fault into force.
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

// Fired is how many work requests were hit.
func (i *Injection) Fired() int {
	i.f.lock()
	defer i.f.unlock()
	return i.fired
}

// Release ends the fault; what it held goes on.
func (i *Injection) Release() {
	i.f.lock()
	defer i.f.unlock()
	i.f.faults = slices.DeleteFunc(i.f.faults, func(x *Injection) bool { return x == i })
	for _, h := range i.held {
		h.q.letGo(h.seq)
	}
	i.held = nil
}

// fate is what the injected faults decided for a work request.
type fate uint8

const (
	fateOpen     fate = iota // not looked at yet
	fateFree                 // nothing, or no more
	fateHeld                 // must not be executed
	fateDataHeld             // a READ whose data is kept back
)

// letGo ends the hold of a work request that may have been flushed meanwhile.
func (q *qp) letGo(seq uint64) {
	if q.destroyed || q.state != stateRTS || seq < q.comp {
		return
	}
	q.sq[seq%uint64(len(q.sq))].fate = fateFree
	q.dev.f.kick(q)
}

// match says whether the fault hits the work request, and counts it.
func (i *Injection) match(q *qp, e *sendEntry) bool {
	op := OpSend
	switch e.wr.Opcode {
	case verbs.WRRDMAWrite:
		op = OpWrite
	case verbs.WRRDMARead:
		op = OpRead
	}
	x := &i.fault
	if i.left == 0 || x.Host != "" && x.Host != q.dev.host.name || x.Ops != 0 && x.Ops&op == 0 {
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

// pass looks once for faults that hit the work request at exec. It says whether the work request
// may be executed now.
func (q *qp) pass(e *sendEntry) bool {
	if e.fate != fateOpen {
		return e.fate != fateHeld
	}
	e.fate = fateFree
	for _, i := range q.dev.f.faults {
		if i.match(q, e) {
			return q.hit(e, i)
		}
	}
	return true
}

// hit applies a fault to the work request at exec.
func (q *qp) hit(e *sendEntry, i *Injection) bool {
	f, x := q.dev.f, &i.fault
	switch {
	case x.Fail != verbs.WCSuccess:
		q.fail(e, x.Fail)
		return false
	case x.Drop:
		e.fate = fateHeld
		q.wait(stallFault, f.opt.RetryTimeout, verbs.WCRetryExcErr)
		return false
	}
	seq := q.exec
	if x.Hold {
		i.held = append(i.held, heldWR{q, seq})
	} else {
		f.after(x.Delay, func() { q.letGo(seq) })
	}
	e.fate = fateHeld
	if e.wr.Opcode == verbs.WRRDMARead {
		e.fate = fateDataHeld
	}
	return e.fate == fateDataHeld
}

// Cut loses everything between two machines until Mend: posted work fails after its retries,
// connection management times out.
func (f *Fabric) Cut(a, b string) { f.cut(a, b, true) }

// Mend ends Cut.
func (f *Fabric) Mend(a, b string) { f.cut(a, b, false) }

func (f *Fabric) cut(a, b string, cut bool) {
	f.lock()
	defer f.unlock()
	ha, hb := f.host(a), f.host(b)
	f.cuts[[2]*host{ha, hb}], f.cuts[[2]*host{hb, ha}] = cut, cut
	for _, h := range []*host{ha, hb} {
		for _, d := range h.devices {
			for _, q := range d.qps {
				f.kick(q)
			}
		}
	}
}

func (f *Fabric) isCut(a, b *host) bool { return len(f.cuts) > 0 && f.cuts[[2]*host{a, b}] }

// HoldCompletions hides new completions of a machine from Poll and sends no notifications until
// ReleaseCompletions. The work itself is done.
func (f *Fabric) HoldCompletions(machine string) {
	f.lock()
	defer f.unlock()
	f.host(machine).hold = true
}

// ReleaseCompletions shows what HoldCompletions hid.
func (f *Fabric) ReleaseCompletions(machine string) {
	f.lock()
	defer f.unlock()
	h := f.host(machine)
	h.hold = false
	for _, d := range h.devices {
		for _, c := range d.cqs {
			c.show()
		}
	}
}

// KillQP moves a queue pair to the error state, as a device does by itself after a fault.
func (f *Fabric) KillQP(machine string, num uint32) bool {
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
	return false
}

// KillCQs lets every completion queue of a machine die as if it had overrun.
func (f *Fabric) KillCQs(machine string) {
	f.lock()
	defer f.unlock()
	for _, d := range f.host(machine).devices {
		for _, c := range d.cqs {
			c.die()
		}
	}
}

// RemoveDevice takes a device away, as hot-unplug does: its queue pairs go to the error state, the
// IDs on it get DeviceRemoval, and calls on it fail, except those that free.
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
		for _, id := range h.ids {
			if id.dev == d {
				id.post(verbs.Event{Type: verbs.EventDeviceRemoval})
			}
		}
		return true
	}
	return false
}

// ExpireCM lets the time pass that connection management waits for answers: every Options.CMTimeout
// and Options.Timewait that is running is over.
func (f *Fabric) ExpireCM() {
	f.lock()
	defer f.unlock()
	var ids []*cmID
	for _, h := range f.hosts {
		ids = append(ids, h.ids...)
	}
	for _, id := range ids {
		id.timeIsUp()
	}
}

// DropEvents loses events of a type on their way to a machine's event channels: skip go by first,
// then times are lost (< 0: all).
func (f *Fabric) DropEvents(machine string, t verbs.EventType, skip, times int) {
	f.lock()
	defer f.unlock()
	f.host(machine).dropEvents[t] = &callFault{skip: skip, times: times}
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
	h     *host
	m     Message
	times int
}

// DropMessages loses the next connection management messages of this kind that a machine sends
// (times < 0: all), with all their retries.
func (f *Fabric) DropMessages(machine string, m Message, times int) {
	f.lock()
	defer f.unlock()
	f.drops = append(f.drops, &messageDrop{f.host(machine), m, times})
}

// reaches says whether a message of one machine arrives at the other.
func (f *Fabric) reaches(from, to *host, m Message) bool {
	if f.isCut(from, to) {
		return false
	}
	for _, d := range f.drops {
		if d.h == from && d.m == m && d.times != 0 {
			d.times--
			return false
		}
	}
	return true
}
